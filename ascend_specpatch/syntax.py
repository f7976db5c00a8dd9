# SPDX-License-Identifier: Apache-2.0
"""The definitions of an object in a module's source, and a digest of them that every supported Python gives
alike."""

from __future__ import annotations

import ast
import copy
import hashlib
import itertools
import warnings
from collections.abc import Iterable, Iterator
from importlib.util import decode_source
from typing import Any

# What parsing raises for text that is no Python of this version, and walking for what is nested too deeply.
ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)

# Fields that do not say what code does, or that Python versions fill differently.
_SKIPPED = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


def parse(source_text: str | bytes) -> list[ast.stmt]:
    """The statements of a module.

    Raises:
        ERRORS: it is no Python of this version.
    """
    with warnings.catch_warnings():
        # Invalid escape sequences and the like: nobody here can mend a host, and under -W error they raise.
        warnings.simplefilter("ignore")
        return ast.parse(source_text).body


def definitions(block: list[ast.stmt], qualname: str) -> list[ast.stmt]:
    """The statements of ``block`` that give ``qualname`` its value, in order; empty where nothing does.

    An ``if``, ``try`` or other compound statement that holds one is cut down to what gives the value, with
    its conditions. An import is cut down to the one name.
    """
    owner, _, name = qualname.replace(".<locals>", "").rpartition(".")
    if not owner:
        return _binding(block, name)
    owners = [each for each in leaves(definitions(block, owner)) if hasattr(each, "body")]
    return [statement for each in owners for statement in _binding(each.body, name)]


def leaves(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The definitions inside what :func:`definitions` gives, without the conditions."""
    for statement in statements:
        blocks = [] if isinstance(statement, _SCOPES) else [block for _, block in _blocks(statement)]
        if blocks:
            for block in blocks:
                yield from leaves(block)
        elif not isinstance(statement, _COMPOUND):
            yield statement


def excerpt(source: bytes, qualname: str) -> str:
    """The lines of ``source`` that define ``qualname``, with their decorators; empty where nothing does.

    Raises:
        ERRORS: see :func:`parse`; or it is nested too deeply.
    """
    lines = decode_source(source).splitlines(keepends=True)
    parts = []
    for node in leaves(definitions(parse(source), qualname)):
        first = min(each.lineno for each in [node, *getattr(node, "decorator_list", [])])
        parts.append("".join(lines[first - 1 : node.end_lineno]))
    return "\n".join(parts)


def digest(statements: Iterable[ast.stmt]) -> str:
    """16 hex digits of a canonical text of ``statements``."""
    return hashlib.sha256("".join(_written(list(statements))).encode()).hexdigest()[:16]


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_COMPOUND = (ast.excepthandler, ast.match_case)


def _blocks(statement: ast.AST) -> Iterator[tuple[str, list[Any]]]:
    """The lists of statements, handlers or cases in a compound statement, with their field's name."""
    for field, value in ast.iter_fields(statement):
        if isinstance(value, list) and value and isinstance(value[0], (ast.stmt, *_COMPOUND)):
            yield field, value


def _binding(block: list[Any], name: str) -> list[Any]:
    """The statements of ``block`` that bind ``name``, cut down to that."""
    found = []
    for statement in block:
        if isinstance(statement, _SCOPES):
            if statement.name == name:
                found.append(statement)
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            aliases = [a for a in statement.names if (a.asname or a.name.partition(".")[0]) == name]
            if aliases:
                found.append(_with(statement, names=aliases))
        else:
            inner = {field: _binding(statements, name) for field, statements in _blocks(statement)}
            if any(inner.values()) or name in _assigned(statement):
                found.append(_with(statement, **inner))
    return found


def _assigned(statement: Any) -> set[str]:
    """The names that an assignment (plain, annotated, augmented, ``type X = ...``) or the head of a ``for``
    or ``with`` binds."""
    targets = [
        *([] if isinstance(statement, ast.Delete) else getattr(statement, "targets", [])),
        *(item.optional_vars for item in getattr(statement, "items", [])),
        getattr(statement, "target", None),
        getattr(statement, "name", None),
    ]
    nodes = [node for target in targets if isinstance(target, ast.AST) for node in ast.walk(target)]
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _with(node: ast.AST, **fields: Any) -> Any:
    changed = copy.copy(node)
    for field, value in fields.items():
        setattr(changed, field, value)
    return changed


def _written(value: Any) -> Iterator[str]:
    """The pieces of the canonical text of a node, a list of nodes, or a value in a node."""
    if isinstance(value, ast.Constant):
        # repr of a str depends on what Unicode a Python knows to be printable.
        yield f"{type(value.value).__name__} {value.value!a}"
    elif isinstance(value, ast.AST):
        yield f"{type(value).__name__}("
        for field, content in sorted(ast.iter_fields(value)):
            if field == "values" and isinstance(value, ast.JoinedStr):
                content = _merged(content)
            # What is empty may be absent in another version.
            if field not in _SKIPPED and content is not None and content != []:
                yield f"{field}="
                yield from _written(content)
                yield ","
        yield ")"
    elif isinstance(value, list):
        yield "["
        for item in value:
            if not _is_docstring(item):
                yield from _written(item)
                yield ","
        yield "]"
    else:
        yield ascii(value)


def _is_docstring(item: Any) -> bool:
    """Also a string that stands as a statement elsewhere: it does nothing there."""
    return (
        isinstance(item, ast.Expr)
        and isinstance(item.value, ast.Constant)
        and isinstance(item.value.value, str)
    )


def _merged(values: list[Any]) -> list[Any]:
    """The parts of an f-string, with neighbouring texts as one: versions split them differently."""
    merged: list[Any] = []
    for is_text, parts in itertools.groupby(values, lambda value: isinstance(value, ast.Constant)):
        if not is_text:
            merged += parts
        elif text := "".join(part.value for part in parts):
            merged.append(ast.Constant(text))
    return merged
