# SPDX-License-Identifier: Apache-2.0
"""The digest of a host object: what changes it, what does not, and that every Python gives the same."""

from __future__ import annotations

import ast
import io
import json
import shutil
import subprocess
import textwrap
import tokenize
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_specpatch import syntax
from ascend_specpatch.fingerprints import NoSource, digest

# What Python versions are known to parse differently, and the rest of the grammar. Digests that change here
# make every verified source file wrong.
GOLDEN = {
    'x = "p" f"{a!r:>{w}.{p}}" "q"': "5a74cb47b4a1aaf9",
    'x = f"{a:}", f"", f"" "b", f"{a}{b}", f"a{{b}}c{d}"': "5b2985a08a7b3cfe",
    'x = f"{a = }", f"{a=!s:^5}{{}}", f"{ {1: 2}[1] }"': "9a2ab7cbe9cce5b0",
    'x = f"{(lambda y: y)(1)}", f"{d:%H:%M}"': "295d8a10da7f8173",
    'x = f"""\n{d}\n  {e:\n}""", rf"\\d{d:\\d}", f"\\N{DIGIT ONE}{d}\\t"': "a3884800a006632b",
    'x = "\\ud800\\u0378\u00e9\U0001f600", b"\\x00a" b"b", u"a", "a" \'b\'': "e1e400f56f02f797",
    "x = 1e400, -0.0, 1_000, 0x1F, 3j, ..., None, True": "002cdea6aaf9c44e",
    "def x(a, /, b: int = 1, *c, d=2, **e) -> None:\n  'doc'\n  pass": "1ac8b4bdbc7805c4",
    "async def x():\n  async with a as b, c:\n    yield 1": "fa5bebcfb1d22a5b",
    "x = [i async for i in y if i]": "72067100a021aa05",
    "class x(A, metaclass=B):\n  y: int = 1\n  def z(self): ...": "d8bcf32267dade7d",
    "match a:\n  case [1, *_] if b: x = 1\n  case {'k': v, **r} | A(b=-1+2j): x = 2": "57b6c46d3d9c03f2",
    "try:\n  x = 1\nexcept (A, B) as e:\n  x = 2\nelse:\n  x = 3\nfinally:\n  z = 1": "673bf0e67b5a2eb5",
    "with (open(a) as b, open(c)):\n  x = 1": "31a5241b18e34fff",
    "x = lambda *a, b=1: (yield), y[1:2, ..., None], [*c, *{**d}], (z := 1)": "9b51c57fab802379",
    "x = not a and b or -c ** ~d @ e // f << 1 <= g is not h not in i": "124d8426c1bdf949",
    "from . import a, b as x": "926d49067fb91e64",
}

MODULE = '''
import os.path as path, sys
from a.b import first, second as other

LIMIT: int = 3
a = b = 1
c, (d, *e) = f()

if HAS_TRITON:
    def kernel(x): return x
else:
    kernel = None

try:
    import fast
except ImportError:
    fast = None

for i in range(3):
    pass

with open("x") as stream:
    inside = stream

@decorated
def function(x: int = 1, *, y=2) -> str:
    """Doc."""
    def inner(): return x
    return inner()

class Outer(Base):
    """Doc."""
    field = 1

    @property
    def value(self): return 1

    @value.setter
    def value(self, new): pass

    class Nested:
        def method(self): return 2
'''


def test_it_is_the_same_as_ever() -> None:
    assert {text: digest(text, "x") for text in GOLDEN} == GOLDEN


SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from ascend_specpatch.fingerprints import digest
print(json.dumps({text: digest(text, "x") for text in json.load(sys.stdin)}))
"""


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_every_python_gives_the_same(version: str, checkout: Path) -> None:
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    found = [str(path) for path in pyenv] + [shutil.which(f"python{version}") or ""]
    if not found[0]:
        pytest.skip(f"no Python {version} here")
    done = subprocess.run(
        [found[0], "-I", "-S", "-W", "ignore", "-c", SCRIPT, str(checkout / ".editable")],
        input=json.dumps(list(GOLDEN)),
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout or "null") == GOLDEN, done.stderr


def test_nodes_that_versions_make_differently_are_the_same() -> None:
    def written(text: str, **fields: object) -> str:
        (node,) = ast.parse(text).body
        for field, value in fields.items():
            setattr(node, field, value)
        return syntax.digest([node])

    function = "def x(): pass"
    assert written(function) == written(function, type_params=[]) == written(function, type_comment=None)
    text = ast.Constant("ab")
    split = [ast.Constant("a"), ast.Constant(""), ast.Constant("b")]
    field = ast.FormattedValue(ast.Name("c", ast.Load()), -1, None)
    pieces = [[text, field], [*split, field], [text, ast.Constant(""), field, ast.Constant("")]]
    assert len({syntax.digest([ast.Expr(ast.JoinedStr(values))]) for values in pieces}) == 1
    assert syntax.digest([ast.Expr(ast.Constant(1, kind="u"))]) == syntax.digest([ast.Expr(ast.Constant(1))])


KINDS = """
    path sys first other LIMIT a b c d e kernel fast i stream inside function function.inner
    function.<locals>.inner Outer Outer.field Outer.value Outer.Nested Outer.Nested.method
"""


@pytest.mark.parametrize("qualname", KINDS.split())
def test_every_kind_of_object_is_found(qualname: str) -> None:
    assert len(digest(MODULE, qualname)) == 16


@pytest.mark.parametrize(
    "qualname", ["nothing", "os", "second", "value", "Outer.nothing", "LIMIT.x", "Outer.value.x", "x", "self"]
)
def test_what_is_not_defined_is_said(qualname: str) -> None:
    with pytest.raises(NoSource, match="does not define"):
        digest(MODULE, qualname)


def test_what_cannot_be_parsed_is_said() -> None:
    for text in ("def f(:", "a = '\0'", "(" * 1000):
        with pytest.raises(NoSource, match="cannot be parsed"):
            digest(text, "f")


@pytest.mark.parametrize(
    ("old", "new", "qualname"),
    [
        ("def kernel(x): return x", "def kernel(x): return -x", "kernel"),
        ("kernel = None", "kernel = 0", "kernel"),
        ("if HAS_TRITON", "if not HAS_TRITON", "kernel"),
        ("fast = None", "fast = 0", "fast"),
        ("except ImportError", "except OSError", "fast"),
        ("@decorated", "@other", "function"),
        ("x: int = 1", "x: int = 2", "function"),
        ("x: int = 1", "x: bool = 1", "function"),
        ("y=2", "y=3", "function"),
        ("-> str", "-> int", "function"),
        ("def function", "async def function", "function"),
        ("def value(self, new): pass", "def value(self, new): ...", "Outer.value"),
        ("def value(self): return 1", "def value(self): return 2", "Outer.value"),
        ("@property", "@cached", "Outer.value"),
        ("return 2", "return 3", "Outer"),
        ("class Outer(Base)", "class Outer(Other)", "Outer"),
        ("second as other", "third as other", "other"),
        ("from a.b", "from a.c", "first"),
        ("LIMIT: int = 3", "LIMIT: int = 4", "LIMIT"),
    ],
)
def test_a_change_of_the_object_changes_it(old: str, new: str, qualname: str) -> None:
    assert MODULE.count(old) == 1
    assert digest(MODULE.replace(old, new), qualname) != digest(MODULE, qualname)


@pytest.mark.parametrize(
    ("old", "new", "qualname"),
    [
        ('"""Doc."""', '"""Other."""', "function"),
        ('"""Doc."""', '"""Other."""', "Outer"),
        ('    """Doc."""\n', "", "Outer"),
        ("class Outer(Base)", "class Outer(Other)", "Outer.value"),
        ("import first, second as other", "import first, more, second as other", "other"),
        ("def kernel(x): return x", "def kernel(x):\n        # why\n        return (x)\n", "kernel"),
        ("LIMIT: int = 3", "LIMIT: int = (\n    3\n)", "LIMIT"),
        ("\nLIMIT", "\n\n\n# a comment\nLIMIT", "LIMIT"),
        ("return 2", "return 3", "Outer.value"),
    ],
)
def test_nothing_else_changes_it(old: str, new: str, qualname: str) -> None:
    assert old in MODULE
    assert digest(MODULE.replace(old, new), qualname) == digest(MODULE, qualname)


@pytest.mark.filterwarnings("error")
def test_what_a_python_warns_of_is_read_in_silence() -> None:
    assert digest("f = '\\d' is 1", "f") == digest(r"f = '\\d' is 1", "f")


def test_line_ends_and_the_encoding_do_not_matter() -> None:
    text = "x = '\u00e9'\ndef f():\n    return x\n"
    latin = ("# coding: latin-1\n" + text).encode("latin-1")
    for name in ("x", "f"):
        assert digest(text, name) == digest(text.replace("\n", "\r\n").encode(), name) == digest(latin, name)


SOURCE = textwrap.dedent(
    """
    @wrapper(1, key="a")
    def f(a, b: int = 2, *rest, flag=True, **more) -> "int":
        total = a + b * 3 - len(rest)
        for index, item in enumerate(rest):
            if item > 4 and not flag or item is None:
                total += item ** 2
            elif flag:
                return f"{total!r:>10} of {index}" "end"
        try:
            with more["b"] as c:
                del c.d
        except (KeyError, ValueError) as error:
            raise RuntimeError("no") from error
        return [x for x in rest if x] or {"k": (lambda y: -y)(total)}
    """
)
TOKENS = list(tokenize.generate_tokens(io.StringIO(SOURCE).readline))
OTHERS = ["other", "7", "'z'", "+", "-", "==", "and", "or", "", "not", ":", ",", "True", "[", "(", "*", "**"]


def _code(text: str) -> str:
    return ast.dump(ast.parse(text))


@settings(deadline=None)
@given(st.integers(0, len(TOKENS) - 1), st.sampled_from(OTHERS))
def test_any_token_that_matters_changes_it(number: int, replacement: str) -> None:
    token = TOKENS[number]
    lines = SOURCE.splitlines(keepends=True)
    if token.start[0] != token.end[0] or token.start[0] > len(lines):
        return
    line = lines[token.start[0] - 1]
    lines[token.start[0] - 1] = f"{line[: token.start[1]]} {replacement} {line[token.end[1] :]}"
    changed = "".join(lines)
    try:
        same = _code(changed) == _code(SOURCE)
        now = digest(changed, "f")
    except (SyntaxError, NoSource):
        return
    assert (now == digest(SOURCE, "f")) == same


@settings(deadline=None)
@given(st.data())
def test_no_comment_blank_line_docstring_or_indentation_changes_it(data: st.DataObject) -> None:
    lines = SOURCE.strip("\n").splitlines()
    out = []
    for line in lines:
        indent = line[: len(line) - len(line.lstrip())]
        if data.draw(st.booleans()):
            out.append(indent + data.draw(st.sampled_from(["# why", "", "  # odd"])))
        code = line.rstrip() + data.draw(st.sampled_from(["", "  # said", "   "]))
        out.append(code)
        if line.startswith("def ") and data.draw(st.booleans()):
            out.append("    " + repr(data.draw(st.text("ab \u00e9", max_size=9))))
    width = data.draw(st.sampled_from([1, 2, 4, 8]))
    text = "\n".join(_indented(line, width) for line in out) + "\n"
    assert digest(text, "f") == digest(SOURCE, "f")


def _indented(line: str, width: int) -> str:
    stripped = line.lstrip()
    return " " * ((len(line) - len(stripped)) // 4 * width) + stripped


def test_an_unparsed_object_is_the_same() -> None:
    assert digest(ast.unparse(ast.parse(MODULE)), "Outer") == digest(MODULE, "Outer")
    assert digest(ast.unparse(ast.parse(SOURCE)), "f") == digest(SOURCE, "f")
