# SPDX-License-Identifier: Apache-2.0
"""Verified source with small hosts: what is checked, what is refused, and what the refusal says."""

from __future__ import annotations

import importlib
import json
import py_compile
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from ascend_specpatch import fingerprints, syntax
from ascend_specpatch.fingerprints import (
    ModuleRecord,
    NoSource,
    ObjectState,
    SourceMismatch,
    VerifiedSource,
    check,
    compare,
    installed_source,
    leans_on,
    record_of,
)
from ascend_specpatch.hosts import HostPair
from ascend_specpatch.registry import Patch

PAIR = HostPair("1.0", "1.0rc1")
HOST = """
    raise SystemExit("never imported")

    def helper(x):
        return x

    class Proposer:
        def propose(self):
            return 1
"""
BODY = (
    'LEANS_ON: tuple[str, ...] = ("made_host.inner.code:helper", "made_host.inner.code:Proposer.propose")\n'
)
PATCH = Patch("worker.made", "made_host.inner.code", "", implementation="made_patches.inner.body")


class Site:
    """A folder on sys.path with a host and a distribution that patches it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("made_host/__init__.py", "raise SystemExit('never imported')\n")
        self.write("made_host/inner/code.py", HOST)
        self.write("made_patches/__init__.py", "")
        self.write("made_patches/inner/__init__.py", "")
        self.write("made_patches/inner/body.py", BODY)
        self.verify()

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        importlib.invalidate_caches()
        return path

    def verify(self, name: str = "made_patches/verified_source.json", pair: HostPair = PAIR) -> Path:
        record = record_of(leans_on(PATCH), installed_source)
        return self.write(name, VerifiedSource(name, {str(pair): record}).text())


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.syspath_prepend(tmp_path)
    yield Site(tmp_path)
    for name in [name for name in sys.modules if name.startswith("made_")]:
        del sys.modules[name]


def refusal() -> str:
    with pytest.raises(SourceMismatch) as caught:
        check(PATCH, PAIR)
    return str(caught.value)


def test_the_verified_source_is_accepted_and_nothing_is_imported(site: Site) -> None:
    check(PATCH, PAIR)
    assert not [name for name in sys.modules if name.startswith("made_")]


def test_unchanged_objects_in_a_changed_file_are_accepted(site: Site) -> None:
    site.write("made_host/inner/code.py", HOST + "\n    def more(): pass\n")
    check(PATCH, PAIR)


def test_the_same_file_is_not_parsed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    fingerprints._digests.cache_clear()
    parsed: list[bytes] = []
    parse = syntax.parse
    monkeypatch.setattr(syntax, "parse", lambda source: parsed.append(source) or parse(source))
    check(PATCH, PAIR)
    assert parsed == [BODY.encode()]  # for LEANS_ON


def test_a_changed_object_is_named_with_both_digests_both_versions_and_what_to_do(site: Site) -> None:
    site.write("made_host/inner/code.py", HOST.replace("return 1", "return 2"))
    said = refusal()
    expected = fingerprints.digest(dedent(HOST), "Proposer.propose")
    found = fingerprints.digest(dedent(HOST.replace("return 1", "return 2")), "Proposer.propose")
    assert expected != found
    assert f"made_host.inner.code:Proposer.propose (expected {expected}, found {found})" in said
    assert "helper" not in said
    assert f"verified on {PAIR}, and the installed {PAIR}" in said
    assert "`ascend-specpatch drift`" in said


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HOST.replace("def helper", "def other"), "its module does not define it"),
        ("def helper(:\n", "its module cannot be parsed"),
        (None, "its module is not installed"),
    ],
)
def test_what_is_gone_is_said(site: Site, text: str | None, why: str) -> None:
    path = site.write("made_host/inner/code.py", text or "")
    if text is None:
        path.unlink()
        importlib.invalidate_caches()
    said = refusal()
    assert (
        f"made_host.inner.code:helper (expected {fingerprints.digest(dedent(HOST), 'helper')}, {why}" in said
    )


def test_a_module_without_source_is_said(site: Site) -> None:
    path = site.folder / "made_host/inner/code.py"
    py_compile.compile(str(path), cfile=str(path.with_suffix(".pyc")))
    path.unlink()
    importlib.invalidate_caches()
    said = refusal()
    assert "made_host.inner.code:Proposer.propose: its module is installed without source" in said
    assert said.endswith(f"Install {PAIR} with its .py files")
    assert "has other source" not in said


def test_an_unreadable_module_is_said(site: Site) -> None:
    path = site.folder / "made_host/inner/code.py"
    path.unlink()
    path.mkdir()
    (path / "__init__.py").mkdir()
    importlib.invalidate_caches()
    assert "its module" in refusal()


def test_another_pair_has_to_be_verified_first(site: Site) -> None:
    with pytest.raises(SourceMismatch, match=r"verified on vllm 1\.0 \+ vllm-ascend 1\.0rc1, not on the ins"):
        check(PATCH, HostPair("2.0", "2.0"))


def test_an_object_that_was_never_verified_is_refused(site: Site) -> None:
    site.write("made_patches/inner/body.py", BODY.replace("helper", "new_one"))
    assert "made_host.inner.code:new_one (not verified yet)" in refusal()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "cannot be read: Expecting value"),
        ('{"format": 1, "pairs": {"a": {', "cannot be read: Expecting"),
        ('{"pairs": {}}', "cannot be read: 'format' is missing"),
        ('{"format": 2, "pairs": {}}', "its format is 2, this version reads 1"),
        ('{"format": 1, "pairs": {"a": {"m": {"objects": {}}}}}', "'source' is missing"),
        ('{"format": 1, "pairs": []}', "cannot be read"),
        ("[]", "cannot be read"),
        ("\0\udcff", "cannot be read"),
        ('{"format": 1, "pairs": {}}', "no hosts at all"),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_a_damaged_file_of_verified_source_is_said(site: Site, content: str, why: str) -> None:
    path = site.folder / "made_patches/verified_source.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    said = refusal()
    assert why in said
    if "no hosts" not in why:
        assert str(path) in said
        assert "reinstall" in said


def test_a_missing_file_of_verified_source_is_said(site: Site) -> None:
    (site.folder / "made_patches/verified_source.json").unlink()
    said = refusal()
    assert "no verified_source.json comes with made_patches.inner.body: reinstall" in said
    assert "`ascend-specpatch verify --update --file" in said


def test_a_file_of_verified_source_that_cannot_be_read_is_said(site: Site) -> None:
    path = site.folder / "made_patches/verified_source.json"
    path.unlink()
    path.mkdir()
    assert refusal() == (
        f"the verified source {path} cannot be read: Is a directory; reinstall ascend-specpatch"
    )


def test_the_nearest_file_counts(site: Site) -> None:
    site.write("made_patches/verified_source.json", "damaged")
    site.verify("made_patches/inner/verified_source.json")
    check(PATCH, PAIR)


def test_a_patch_that_declares_nothing_is_not_checked(site: Site) -> None:
    (site.folder / "made_patches/verified_source.json").unlink()
    site.write("made_patches/inner/body.py", "def apply(edit): pass\n")
    check(PATCH, PAIR)
    check(Patch("worker.made", "x", "", implementation="made_patches.no_such_body"), PAIR)


@pytest.mark.parametrize("declared", ["f()", "['m:a']", "('m',)", "('m:',)", "(':a',)", "(1,)", "'m:a'", "("])
def test_a_declaration_of_another_form_is_refused(site: Site, declared: str) -> None:
    site.write("made_patches/inner/body.py", f"LEANS_ON = {declared}\n")
    with pytest.raises(SourceMismatch, match=r"LEANS_ON of made_patches\.inner\.body is not a "):
        leans_on(PATCH)


def test_what_a_body_declares_is_read_without_importing_it_and_alike_when_it_is_loaded(site: Site) -> None:
    site.write("made_patches/inner/body.py", "import no_such_torch\n" + BODY)
    read = leans_on(PATCH)
    assert read == ("made_host.inner.code:helper", "made_host.inner.code:Proposer.propose")
    assert "made_patches.inner" not in sys.modules
    site.write("made_patches/inner/body.py", BODY)
    importlib.import_module("made_patches.inner.body")
    assert leans_on(PATCH) == read


def test_hosts_and_patches_may_be_zipped(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    site.write("made_host/inner/__init__.py", "")
    archive = tmp_path / "zipped" / "all.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as file:
        for path in tmp_path.rglob("*.*"):
            if path.suffix in (".py", ".json"):
                file.write(path, path.relative_to(tmp_path))
    monkeypatch.setattr(sys, "path", [str(archive), *(p for p in sys.path if p != str(tmp_path))])
    importlib.invalidate_caches()
    check(PATCH, PAIR)
    assert fingerprints.path_for(PATCH) == str(archive / "made_patches/verified_source.json")
    with pytest.raises(NoSource, match="not installed"):
        installed_source("made_host.inner.nothing")


def test_a_package_is_its_init_and_a_loaded_package_is_looked_into_where_it_says(site: Site) -> None:
    assert installed_source("made_host") == (site.folder / "made_host/__init__.py").read_bytes()
    elsewhere = site.write("elsewhere/inner/code.py", "moved = True\n")
    loaded: Any = type(sys)("made_host")
    loaded.__path__ = [str(site.folder / "elsewhere")]
    sys.modules["made_host"] = loaded
    assert installed_source("made_host.inner.code") == elsewhere.read_bytes()


@pytest.mark.parametrize(
    "name", ["made_nothing", "made_nothing.a", "made_host.nothing.a", "sys", "made_host.inner"]
)
def test_what_has_no_source_is_said(site: Site, name: str) -> None:
    with pytest.raises(NoSource, match="its module is "):
        installed_source(name)


@pytest.mark.parametrize("source", [b"x = a" + b".b()" * 500, b"if a: x = 0\n" + b"elif a: x = 1\n" * 500])
def test_source_that_is_nested_too_deeply_is_said(source: bytes) -> None:
    (finding,) = compare(["m:x"], {"m": ModuleRecord("0", {"x": "1"})}, lambda module: source)
    assert finding.state is ObjectState.MISSING
    assert "nested too deeply: maximum recursion depth exceeded" in finding.detail


def test_source_that_takes_too_much_to_parse_is_said() -> None:
    record = {"m": ModuleRecord("0", {"x": "1"})}
    (finding,) = compare(["m:x"], record, lambda module: b"x = " + b"-" * 99_999 + b"1")
    assert finding.detail.startswith("its module ")
    assert not finding.detail.endswith(": ")


def test_a_comparison_keeps_the_order_and_tells_the_states_apart(site: Site) -> None:
    sources = {"m": b"def a(): pass\ndef b(): pass\ndef c(): pass\n", "n": b"d = 1\n"}
    record = record_of(["m:a", "m:b", "m:c", "n:d"], sources.__getitem__)
    now = {**sources, "m": b"def a(): pass\ndef b(): return\n"}

    def read(module: str) -> bytes:
        if module == "n":
            raise NoSource("gone")
        return now[module]

    names = ["m:c", "n:d", "m:b", "m:a", "o:f", "m:e"]
    found = compare(names, record, read)
    assert [finding.name for finding in found] == names
    states = [finding.state for finding in found]
    missing, changed, verified, unverified = (
        ObjectState.MISSING,
        ObjectState.CHANGED,
        ObjectState.VERIFIED,
        ObjectState.UNVERIFIED,
    )
    assert states == [missing, missing, changed, verified, unverified, unverified]
    assert [finding.detail for finding in found[:2]] == ["its module does not define it", "gone"]


def test_the_file_is_one_object_a_line_in_order_and_reads_back() -> None:
    record = record_of(["m:b", "m:a", "k:c"], {"m": b"a = b = 1", "k": b"c = 1"}.__getitem__)
    file = VerifiedSource("path", {"pair 2": record, "pair 1": {}})
    text = file.text()
    assert VerifiedSource.parse(text, "path") == file
    assert json.loads(text)["format"] == 1
    lines = [line.strip() for line in text.splitlines()]
    names = [line.partition('"')[2].partition('"')[0] for line in lines if line.startswith('"')]
    assert names == [
        *("about", "format", "pairs", "pair 1", "pair 2"),
        *("k", "objects", "c", "source", "m", "objects", "a", "b", "source"),
    ]
