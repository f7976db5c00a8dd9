# SPDX-License-Identifier: Apache-2.0
"""Verified source: a patch lands only on host code that it was written for.

Every patch body declares ``LEANS_ON``, the host objects that it replaces, clones, wraps or knows the inside
of, each as ``module:qualname``. ``verified_source.json`` holds the digest of each, by host pair, next to the
patches. Before a patch is applied, the installed source is compared with it.

Nothing here imports a host: source is read through the import system's loaders, from folders and zip files
alike.
"""

from __future__ import annotations

import ast
import errno
import functools
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.machinery import SOURCE_SUFFIXES, ModuleSpec, PathFinder
from typing import Any, Final

from ascend_specpatch import syntax
from ascend_specpatch.hosts import HostPair
from ascend_specpatch.registry import Patch

FILE_NAME: Final = "verified_source.json"
FORMAT: Final = 1
_WITHOUT_SOURCE: Final = "its module is installed without source"

Reader = Callable[[str], bytes]
"""Gives the source of a module as it is in its file; raises :class:`NoSource` with the reason where there is
none."""


class SourceMismatch(RuntimeError):
    """The host is not what a patch was verified on, or that cannot be told; the message says what to do."""


class NoSource(LookupError):
    """A module that is not there, or is there without its source; the message says which."""


class ObjectState(str, Enum):
    """What a comparison with the verified source says of one object."""

    VERIFIED = "verified"
    CHANGED = "changed"
    MISSING = "missing"
    UNVERIFIED = "unverified"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Finding:
    """One object of ``LEANS_ON`` and what was found.

    Attributes:
        name: ``module:qualname``.
        expected: the verified digest; None where the object is not in the verified source.
        found: the digest of the source that was read; None where there is none.
        detail: why there is no source.
    """

    name: str
    state: ObjectState
    expected: str | None = None
    found: str | None = None
    detail: str = ""

    def __str__(self) -> str:
        if self.state is ObjectState.CHANGED:
            return f"{self.name} (expected {self.expected}, found {self.found})"
        if self.state is ObjectState.MISSING:
            return f"{self.name} (expected {self.expected}, {self.detail})"
        return f"{self.name} ({'not verified yet' if self.state is ObjectState.UNVERIFIED else self.state})"


@dataclass(frozen=True)
class ModuleRecord:
    """What was verified of one host module.

    Attributes:
        source: sha256 of its file: where that is equal nothing is parsed.
        objects: qualname -> digest.
    """

    source: str
    objects: Mapping[str, str]


Record = Mapping[str, ModuleRecord]
"""What was verified on one host pair: module -> its record."""


@dataclass(frozen=True)
class VerifiedSource:
    """The content of a ``verified_source.json``.

    Attributes:
        path: where it was read from.
        pairs: the host pair, as text, -> its record.
    """

    path: str
    pairs: Mapping[str, Record]

    @classmethod
    def parse(cls, text: str | bytes, path: str) -> VerifiedSource:
        """
        Raises:
            SourceMismatch: the text is damaged or of another format.
        """
        try:
            content = json.loads(text)
            if content["format"] != FORMAT:
                raise ValueError(f"its format is {content['format']!r}, this version reads {FORMAT}")
            pairs = {
                pair: {
                    module: ModuleRecord(
                        str(entry["source"]), {k: str(v) for k, v in entry["objects"].items()}
                    )
                    for module, entry in modules.items()
                }
                for pair, modules in content["pairs"].items()
            }
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            said = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise SourceMismatch(
                f"the verified source {path} cannot be read: {said}; reinstall the package it is in, or in a "
                "checkout restore the file and run `ascend-specpatch verify --update`"
            ) from error
        return cls(path, pairs)

    def text(self) -> str:
        """The file: one object a line, in order, so that a change of one is a change of one line."""
        content = {
            "about": "Digests of the host source that each patch leans on. "
            "Written by `ascend-specpatch verify --update`.",
            "format": FORMAT,
            "pairs": {
                pair: {
                    module: {"objects": dict(entry.objects), "source": entry.source}
                    for module, entry in record.items()
                }
                for pair, record in self.pairs.items()
            },
        }
        return json.dumps(content, indent=2, sort_keys=True) + "\n"


def check(patch: Patch, pair: HostPair) -> None:
    """Make sure that the installed source is what ``patch`` was verified on. A patch that declares no
    ``LEANS_ON`` is not checked.

    Raises:
        SourceMismatch: it is not, or that cannot be told.
    """
    names = leans_on(patch)
    if not names:
        return
    verified = verified_for(patch)
    record = verified.pairs.get(str(pair))
    if record is None:
        known = " or ".join(verified.pairs) or "no hosts at all"
        raise SourceMismatch(
            f"it was verified on {known}, not on the installed {pair}: `ascend-specpatch drift` says what "
            "differs; report it"
        )
    differing = [f for f in compare(names, record, installed_source) if f.state is not ObjectState.VERIFIED]
    without = [finding.name for finding in differing if finding.detail == _WITHOUT_SOURCE]
    if without:
        raise SourceMismatch(
            f"it was verified on the source of {pair}, and there is none to compare with for "
            f"{', '.join(without)}: {_WITHOUT_SOURCE}. Install {pair} with its .py files"
        )
    if differing:
        raise SourceMismatch(
            f"it was verified on {pair}, and the installed {pair} has other source: "
            f"{'; '.join(map(str, differing))}. `ascend-specpatch drift` says more; report it"
        )


def compare(names: Sequence[str], record: Record, read: Reader) -> list[Finding]:
    """Compare the objects ``module:qualname`` of ``names``, as ``read`` gives their modules, with what was
    verified."""
    found = {}
    for module, qualnames in _by_module(names).items():
        for finding in _compare_module(module, qualnames, record.get(module), read):
            found[finding.name] = finding
    return [found[name] for name in names]


def record_of(names: Iterable[str], read: Reader) -> dict[str, ModuleRecord]:
    """What is to be recorded of the objects ``module:qualname`` as ``read`` gives their modules.

    Raises:
        NoSource: one is not there.
    """
    record = {}
    for module, qualnames in sorted(_by_module(names).items()):
        source = read(module)
        digests = {qualname: digest(source, qualname) for qualname in sorted(qualnames)}
        record[module] = ModuleRecord(_sha256(source), digests)
    return record


def digest(source_text: str | bytes, qualname: str) -> str:
    """16 hex digits that change exactly when the code of an object does: its definitions (all of them, where
    there are several), decorators, defaults and annotations, not its formatting, comments or docstrings. The
    same under every supported Python.

    Args:
        source_text: of the whole module; bytes as they are in its file.
        qualname: a function, class, constant or imported name of the module, or with dots a member of one.

    Raises:
        NoSource: the text does not define it, or is no Python of this version.
    """
    found = _digests(source_text, (qualname,))
    if qualname not in found:
        raise NoSource(f"its module does not define {qualname}")
    return found[qualname]


def leans_on(patch: Patch) -> tuple[str, ...]:
    """The ``LEANS_ON`` of a patch's body, read from its source where the body is not loaded; empty where it
    declares none.

    Raises:
        SourceMismatch: the declaration is not a literal tuple of ``"module:qualname"``.
    """
    body = sys.modules.get(patch.body)
    if body is not None:
        declared = getattr(body, "LEANS_ON", ())
    else:
        try:
            declared = _literal(installed_source(patch.body), "LEANS_ON")
        except NoSource:  # importing it will say more
            return ()
        except (*syntax.ERRORS, TypeError) as error:
            raise SourceMismatch(
                f"LEANS_ON of {patch.body} is not a literal: {error}. {_mend(patch)}"
            ) from error
    if not isinstance(declared, tuple) or not all(map(_is_name, declared)):
        raise SourceMismatch(f'LEANS_ON of {patch.body} is not a tuple of "module:qualname". {_mend(patch)}')
    return declared


def _mend(patch: Patch) -> str:
    return f"Mend or uninstall {patch.provider}" if patch.provider else "Reinstall ascend-specpatch"


def verified_for(patch: Patch) -> VerifiedSource:
    """The verified source that comes with a patch.

    Raises:
        SourceMismatch: there is none, or it cannot be read, or is damaged.
    """
    return _parsed(*_file_of(patch))


def path_for(patch: Patch) -> str:
    """Where the verified source that comes with a patch is.

    Raises:
        SourceMismatch: there is none, or it cannot be read.
    """
    return _file_of(patch)[1]


_NOT_THERE: Final = (errno.ENOENT, errno.ENOTDIR, 0)  # the 0 is zipimport's


def _file_of(patch: Patch) -> tuple[bytes, str]:
    """The nearest ``verified_source.json`` in the packages that the body of a patch is in, and its path."""
    spec = _find_spec(patch.body)
    folder = os.path.dirname(spec.origin) if spec is not None and spec.origin else ""
    get_data = getattr(spec.loader if spec else None, "get_data", None)
    for _ in range(patch.body.count(".") if get_data else 0):
        path = os.path.join(folder, FILE_NAME)
        try:
            return get_data(path), path  # type: ignore[misc]
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise SourceMismatch(
                    f"the verified source {path} cannot be read: {error.strerror}; reinstall "
                    f"{patch.provider or 'ascend-specpatch'}"
                ) from error
            folder = os.path.dirname(folder)
    raise SourceMismatch(
        f"no {FILE_NAME} comes with {patch.body}: reinstall {patch.provider or 'ascend-specpatch'}. Its "
        f"authors write the file into its package with `ascend-specpatch verify --update --file {FILE_NAME}`"
    )


def installed_source(module: str) -> bytes:
    """The source of an installed module, which is not imported, nor is a package that it is in.

    Raises:
        NoSource: the module is not installed, or without its source.
    """
    spec = _find_spec(module)
    if spec is None:
        raise NoSource("its module is not installed")
    loader: Any = spec.loader
    origin = spec.origin or ""
    try:
        if hasattr(loader, "get_data") and origin.endswith(tuple(SOURCE_SUFFIXES)):
            source: bytes = loader.get_data(origin)
            return source
        text: str | None = loader.get_source(spec.name) if hasattr(loader, "get_source") else None
    except (ImportError, OSError, SyntaxError, ValueError) as error:
        raise NoSource(f"the source of its module cannot be read: {error}") from error
    if text is None:
        raise NoSource(_WITHOUT_SOURCE)
    return text.encode()


def _find_spec(module: str) -> ModuleSpec | None:
    """As ``importlib.util.find_spec``, which would import the packages that a module is in."""
    package, _, name = module.rpartition(".")
    try:
        if not package:
            return importlib.util.find_spec(module)
        locations = getattr(sys.modules.get(package), "__path__", None)
        if locations is None:
            spec = _find_spec(package)
            locations = spec.submodule_search_locations if spec else None
        # Under its last name alone: a namespace package would look for its parent among the loaded modules.
        return PathFinder.find_spec(name, list(locations)) if locations is not None else None
    except (ImportError, ValueError):  # ValueError: a module without a spec
        return None


@functools.lru_cache(maxsize=8)
def _parsed(content: bytes, path: str) -> VerifiedSource:
    return VerifiedSource.parse(content, path)


def _by_module(names: Iterable[str]) -> dict[str, list[str]]:
    """The qualnames of ``module:qualname`` by module."""
    found: dict[str, list[str]] = {}
    for name in names:
        module, _, qualname = name.partition(":")
        found.setdefault(module, []).append(qualname)
    return found


def _compare_module(
    module: str, qualnames: list[str], entry: ModuleRecord | None, read: Reader
) -> Iterator[Finding]:
    verified: Mapping[str, str] = entry.objects if entry else {}
    digests: Mapping[str, str] = {}
    same, why = False, "its module does not define it"
    if entry is not None:
        try:
            source = read(module)
            same = _sha256(source) == entry.source
            digests = {} if same else _digests(source, tuple(verified))
        except NoSource as error:
            why = str(error)
    for qualname in qualnames:
        name, expected = f"{module}:{qualname}", verified.get(qualname)
        if expected is None:
            yield Finding(name, ObjectState.UNVERIFIED)
        elif same or digests.get(qualname) == expected:
            yield Finding(name, ObjectState.VERIFIED, expected, expected)
        elif qualname in digests:
            yield Finding(name, ObjectState.CHANGED, expected, digests[qualname])
        else:
            yield Finding(name, ObjectState.MISSING, expected, detail=why)


@functools.lru_cache(maxsize=32)
def _digests(source: str | bytes, qualnames: tuple[str, ...]) -> Mapping[str, str]:
    """The digests of those of ``qualnames`` that ``source`` defines. Parsing is what costs here, and several
    patches lean on one module.

    Raises:
        NoSource: it is no Python of this version, or is nested too deeply.
    """
    try:
        statements = syntax.parse(source)
        found = {qualname: syntax.definitions(statements, qualname) for qualname in qualnames}
        return {qualname: syntax.digest(nodes) for qualname, nodes in found.items() if nodes}
    except (RecursionError, MemoryError) as error:
        raise NoSource(f"its module is nested too deeply: {str(error) or type(error).__name__}") from error
    except syntax.ERRORS as error:
        raise NoSource(f"its module cannot be parsed: {error}") from error


def _sha256(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and all(name.partition(":"))


def _literal(source_text: bytes, name: str) -> Any:
    """The value of the module-level literal ``name``; an empty tuple where there is none.

    Raises:
        syntax.ERRORS, TypeError: the text is no Python, or the value is not a literal.
    """
    for statement in syntax.parse(source_text):
        targets = (
            statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        )
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return ast.literal_eval(getattr(statement, "value", ""))
    return ()
