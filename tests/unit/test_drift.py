# SPDX-License-Identifier: Apache-2.0
"""``ascend-specpatch verify`` and ``drift`` with small hosts, installed and in archives made here."""

from __future__ import annotations

import argparse
import importlib
import io
import itertools
import json
import os
import stat
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from ascend_specpatch import archives, drift, fingerprints, hosts, registry
from ascend_specpatch.hosts import HostPair
from ascend_specpatch.registry import Form, Patch, Registry

PAIR = HostPair("1.0", "1.0rc1")
VLLM = {
    "vllm/__init__.py": "raise SystemExit('never imported')\n",
    "vllm/proposer.py": """
        @decorated
        class Proposer:
            def propose(self):
                return 1

        def helper():
            return 1
        """,
}
ASCEND = {
    "vllm_ascend/__init__.py": "raise SystemExit('never imported')\n",
    "vllm_ascend/runner/__init__.py": "LIMIT = 3\n",
}
BODIES = {
    "made_bodies/__init__.py": "",
    "made_bodies/worker.py": 'LEANS_ON = ("vllm_ascend.runner:LIMIT",)\n',
    "made_bodies/proposer.py": 'LEANS_ON = ("vllm.proposer:Proposer", "vllm.proposer:helper")\n',
    "made_bodies/needs.py": 'LEANS_ON = ("vllm_ascend.runner:LIMIT",)\n',
    "made_bodies/silent.py": "def apply(edit): pass\n",
}
PATCHES = (
    Patch("worker.limit", "vllm_ascend.runner", "", implementation="made_bodies.worker"),
    Patch("spec_decode.proposer", "vllm.proposer", "", implementation="made_bodies.proposer"),
    Patch(
        "model_runner.needs",
        "vllm_ascend.runner",
        "",
        requires=("spec_decode.proposer",),
        implementation="made_bodies.needs",
    ),
    Patch("model_runner.silent", "vllm_ascend.runner", "", implementation="made_bodies.silent"),
)


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    importlib.invalidate_caches()
    return folder


def changed(files: Mapping[str, str], old: str, new: str) -> dict[str, str]:
    assert any(old in text for text in files.values())
    return {name: text.replace(old, new) for name, text in files.items()}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A site-packages with both hosts and patches for them, verified."""
    folder = write(tmp_path / "site", {**VLLM, **ASCEND, **BODIES})
    for name in [name for name in sys.modules if name.partition(".")[0] in ("vllm", "vllm_ascend")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(registry, "load", lambda: Registry(PATCHES))
    monkeypatch.setattr(hosts, "SUPPORTED", (PAIR,))
    monkeypatch.setattr(hosts, "installed", lambda: PAIR)
    write(folder, {"made_bodies/verified_source.json": '{"format": 1, "pairs": {}}'})
    assert run("verify", "--update") == 0
    yield folder
    assert not {"vllm", "vllm_ascend", "made_bodies"} & set(sys.modules)


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    drift.add_parsers(parser.add_subparsers(required=True))
    options = parser.parse_args(list(map(str, arguments)))
    code: int = options.run(options)
    return code


def wheel(path: Path, files: Mapping[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, dedent(text))
    return path


def sdist(path: Path, files: Mapping[str, str], top: str = "vllm-2.0/") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            content = dedent(text).encode()
            member = tarfile.TarInfo(top + name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


# verify


def test_verify_lists_every_object_by_patch(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("verify") == 0
    assert capsys.readouterr().out.splitlines() == [
        "PATCH                 OBJECT                    STATE",
        "worker.limit          vllm_ascend.runner:LIMIT  verified",
        "spec_decode.proposer  vllm.proposer:Proposer    verified",
        "spec_decode.proposer  vllm.proposer:helper      verified",
        "model_runner.needs    vllm_ascend.runner:LIMIT  verified",
        "",
        "vllm 1.0 + vllm-ascend 1.0rc1: 4 of 4 objects of 3 patches are as verified",
    ]


def test_verify_tells_the_states_apart(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(site, changed(VLLM, "return 1", "return 2"))
    write(site, {"vllm_ascend/runner/__init__.py": ""})
    write(site, {"made_bodies/needs.py": 'LEANS_ON = ("vllm_ascend.runner:OTHER",)\n'})
    capsys.readouterr()
    assert run("verify", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["pair"] == str(PAIR)
    assert found["verified"] is False
    states = {each["id"]: [o["state"] for o in each["objects"]] for each in found["patches"]}
    assert states == {
        "worker.limit": ["missing"],
        "spec_decode.proposer": ["changed", "changed"],
        "model_runner.needs": ["unverified"],
    }
    assert run("verify") == 1
    said = capsys.readouterr().out
    assert "missing (its module does not define it)" in said
    assert "changed (expected " in said
    assert "0 of 4 objects" in said


def test_verify_says_what_is_wrong_with_the_file(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(site, {"made_bodies/verified_source.json": "damaged"}) / "made_bodies/verified_source.json"
    assert run("verify") == 1
    assert f"the verified source {path} cannot be read" in capsys.readouterr().out
    assert run("verify", "--update") == 1
    assert f"the verified source {path} cannot be read" in capsys.readouterr().err
    assert path.read_text() == "damaged"


def test_a_pair_that_no_patch_is_for_is_not_verified(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "installed", lambda: HostPair("2.0", None))
    for arguments in (["verify"], ["verify", "--update"]):
        assert run(*arguments) == 2
        said = capsys.readouterr().err
        assert f"found vllm 2.0 + no vllm-ascend, and no patch is for it: install {PAIR}" in said


def test_update_records_what_is_installed_and_says_what_changed(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = site / "made_bodies/verified_source.json"
    first = path.read_text()
    write(site, changed(VLLM, "def helper():\n            return 1", "def helper():\n            return 2"))
    write(site, {"made_bodies/needs.py": 'LEANS_ON = ("vllm_ascend:__init__", "vllm_ascend.runner:NEW")\n'})
    assert run("verify", "--update") == 1
    assert "stays as it is: its module does not define" in capsys.readouterr().err
    assert path.read_text() == first

    write(site, {"made_bodies/needs.py": 'LEANS_ON = ("vllm_ascend.runner:NEW",)\n'})
    write(site, {"vllm_ascend/runner/__init__.py": "NEW = LIMIT = 3\n"})
    write(site, {"made_bodies/worker.py": "LEANS_ON = ()\n"})
    assert run("verify", "--update") == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == f"{path}: {PAIR}"
    kinds = {line.split()[1]: line[0] for line in lines}
    assert kinds == {
        "vllm.proposer:helper": "!",
        "vllm_ascend.runner:NEW": "+",
        "vllm_ascend.runner:LIMIT": "-",
    }
    assert run("verify") == 0
    capsys.readouterr()
    written = path.stat().st_ino
    assert run("verify", "--update") == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["nothing changed"]
    assert path.stat().st_ino == written

    second = HostPair("1.1", "1.1")
    monkeypatch.setattr(hosts, "SUPPORTED", (PAIR, second))
    monkeypatch.setattr(hosts, "installed", lambda: second)
    assert run("verify", "--update", "--json") == 0
    assert list(json.loads(path.read_text())["pairs"]) == [str(PAIR), str(second)]


def test_update_may_write_another_file(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "made_bodies/verified_source.json").unlink()
    path = tmp_path / "new.json"
    assert run("verify", "--file", path) == 2
    assert f"{path} cannot be read: No such file" in capsys.readouterr().err
    assert run("verify", "--update") == 1
    assert "no verified_source.json comes with made_bodies.worker" in capsys.readouterr().err
    assert run("verify", "--update", "--file", path) == 0
    assert run("verify", "--file", path) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [each.name for each in tmp_path.iterdir() if each.name != "site"] == ["new.json"]


def test_a_file_that_cannot_be_written_is_said_and_left_as_it_was(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = site / "made_bodies/verified_source.json"
    before = path.read_text()
    write(site, changed(VLLM, "return 1", "return 2"))

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    assert run("verify", "--update") == 2
    said = capsys.readouterr().err
    assert f"{path} cannot be written: Permission denied. Work in a checkout" in said
    assert path.read_text() == before
    assert sorted(each.name for each in path.parent.glob(".*")) == []
    assert run("verify", "--update", "--file", site / "no" / "such.json") == 2
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


def test_a_declaration_that_cannot_be_read_is_said(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(site, {"made_bodies/needs.py": "LEANS_ON = compute()\n"})
    for command, well in (("verify", "verified"), ("drift", "untouched")):
        capsys.readouterr()
        assert run(command) == 1
        lines = capsys.readouterr().out.splitlines()
        (said,) = (line for line in lines if line.startswith("model_runner.needs"))
        assert "LEANS_ON of made_bodies.needs is not a literal" in said
        assert sum(line.endswith(f"  {well}") for line in lines) == (3 if command == "verify" else 2)
    assert run("verify", "--update") == 1
    assert "LEANS_ON of made_bodies.needs is not a literal" in capsys.readouterr().err


def test_update_writes_no_file_where_another_cannot_be_made(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = site / "made_bodies/verified_source.json"
    before = path.read_text()
    write(site, changed(VLLM, "return 1", "return 2"))
    write(site, {"made_others/__init__.py": "", "made_others/body.py": "LEANS_ON = compute()\n"})
    write(site, {"made_others/verified_source.json": '{"format": 1, "pairs": {}}'})
    other = Patch("model_runner.other", "vllm.proposer", "", implementation="made_others.body")
    monkeypatch.setattr(registry, "load", lambda: Registry((*PATCHES, other)))
    assert run("verify", "--update") == 1
    assert "LEANS_ON of made_others.body is not a literal" in capsys.readouterr().err
    assert path.read_text() == before


# drift


def test_no_drift(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run("drift") == 0
    assert capsys.readouterr().out.splitlines() == [
        "from  vllm 1.0 + vllm-ascend 1.0rc1, as verified",
        "to    vllm 1.0 + vllm-ascend 1.0rc1",
        "",
        "PATCH                 VERDICT    REASON",
        "worker.limit          untouched",
        "spec_decode.proposer  untouched",
        "model_runner.needs    untouched",
    ]
    reformatted = changed(VLLM, "return 1", "return (  # one\n                    1)")
    assert run("drift", "--vllm", wheel(tmp_path / "v.whl", reformatted), "--vllm-ascend", "1.0rc1") == 0


@pytest.mark.parametrize("kind", ["wheel", "tar.gz", "zip", "src", "folder", "unpacked"])
def test_what_changed_is_shown_and_who_would_be_refused(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    files = changed(
        VLLM, "def propose(self):\n                return 1", "def propose(self):\n                return 2"
    )
    given = {
        "wheel": lambda: wheel(tmp_path / "vllm-2.0-py3-none-any.whl", files),
        "tar.gz": lambda: sdist(tmp_path / "vllm-2.0.tar.gz", files),
        "zip": lambda: wheel(tmp_path / "vllm-2.0.zip", {f"vllm-2.0/{k}": v for k, v in files.items()}),
        "src": lambda: sdist(tmp_path / "vllm-2.0.tar.gz", files, "vllm-2.0/src/"),
        "folder": lambda: write(tmp_path / "other-site", files),
        "unpacked": lambda: write(tmp_path / "vllm-2.0" / "src", files).parent,
    }[kind]()
    capsys.readouterr()
    assert run("drift", "--vllm", given) == 1
    text = capsys.readouterr().out
    assert f"to    {given.name} + vllm-ascend 1.0rc1" in text
    assert text.split("\n\n", 1)[1] == dedent(
        f"""\
        PATCH                 VERDICT           REASON
        worker.limit          untouched
        spec_decode.proposer  would be refused  1 of 2 objects differ
        model_runner.needs    would be refused  needs spec_decode.proposer

        --- vllm.proposer:Proposer (vllm 1.0)
        +++ vllm.proposer:Proposer ({given.name})
        @@ -1,4 +1,4 @@
         @decorated
         class Proposer:
             def propose(self):
        -        return 1
        +        return 2
        """
    )
    assert run("drift", "--vllm", given, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert {each["id"]: each["refused"] for each in found["patches"]} == {
        "worker.limit": False,
        "spec_decode.proposer": True,
        "model_runner.needs": True,
    }
    assert list(found["differences"]) == ["vllm.proposer:Proposer"]


def test_source_of_a_release_cannot_steer_the_terminal(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = wheel(tmp_path / "v.whl", changed(VLLM, "return 1", "return '\x1b[2J\t'"))
    assert run("drift", "--vllm", given) == 1
    assert "return '\\x1b[2J\t'\n" in capsys.readouterr().out


def test_what_is_gone_is_said(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = wheel(tmp_path / "v.whl", changed(VLLM, "def helper", "def helped"))
    assert run("drift", "--vllm", gone) == 1
    assert "vllm.proposer:helper is gone: its module does not define it" in capsys.readouterr().out
    moved = wheel(tmp_path / "w.whl", {"vllm/__init__.py": ""})
    assert run("drift", "--vllm", moved) == 1
    assert "vllm.proposer:helper is gone: its module is not there" in capsys.readouterr().out


def test_two_releases_are_compared_with_nothing_installed(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*VLLM, *ASCEND, "made_bodies/verified_source.json"):
        (site / name).unlink()
    monkeypatch.setattr(hosts, "installed", lambda: HostPair(None, None))
    old = wheel(tmp_path / "old.whl", VLLM), wheel(tmp_path / "old_ascend.whl", ASCEND)
    new = wheel(tmp_path / "new.whl", VLLM), wheel(tmp_path / "new_ascend.whl", changed(ASCEND, "3", "4"))
    options = ["--base-vllm", old[0], "--base-vllm-ascend", old[1], "--vllm", new[0], "--vllm-ascend", new[1]]
    capsys.readouterr()
    assert run("drift", *options) == 1
    text = capsys.readouterr().out
    assert text.startswith("from  old.whl + old_ascend.whl\nto    new.whl + new_ascend.whl\n")
    assert "-LIMIT = 3\n+LIMIT = 4\n" in text
    assert run("drift", *options[:-1], old[1]) == 0
    less = wheel(tmp_path / "less.whl", {**VLLM, "vllm/proposer.py": "def helper():\n    return 1\n"})
    capsys.readouterr()
    assert run("drift", "--base-vllm", less, *options[2:-1], old[1]) == 1
    assert "vllm.proposer:Proposer is not in less.whl + old_ascend.whl" in capsys.readouterr().out


def test_a_diff_needs_the_verified_release(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(site, changed(ASCEND, "3", "4"))
    capsys.readouterr()
    assert run("drift") == 1
    said = capsys.readouterr().out
    assert "vllm_ascend.runner:LIMIT changed (expected " in said
    assert "the installed source is not the verified one: name it with --base-vllm" in said
    assert run("drift", "--base-vllm-ascend", wheel(tmp_path / "a.whl", ASCEND)) == 1
    assert "-LIMIT = 3\n+LIMIT = 4\n" in capsys.readouterr().out


def test_a_version_that_is_not_installed_is_not_downloaded(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("drift", "--vllm-ascend", "2.0") == 2
    said = capsys.readouterr().err
    assert "2.0 is neither a file or folder nor the installed version of vllm-ascend (1.0rc1)" in said
    assert "`pip download --no-deps vllm-ascend==2.0`" in said


def _damaged_zip(folder: Path) -> Path:
    path = wheel(folder / "v.whl", {**VLLM, "vllm/padding.py": "x" * 999})
    content = path.read_bytes()
    path.write_bytes(content.replace(b"def helper", b"def hulper"))
    return path


def _damaged_name(folder: Path) -> Path:
    path = wheel(folder / "v.whl", {**VLLM, "vllm/\u00e9.py": ""})
    path.write_bytes(path.read_bytes().replace("\u00e9".encode(), b"\xff\xfe"))
    return path


def _cut_tar(folder: Path) -> Path:
    path = sdist(folder / "v.tar.gz", {**VLLM, "vllm/noise.py": os.urandom(9999).hex()})
    path.write_bytes(path.read_bytes()[:4000])
    return path


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda folder: folder, "has no package vllm"),
        (
            lambda folder: write(folder, {"a.txt": "a"}) / "a.txt",
            "is no wheel, source distribution or folder",
        ),
        (lambda folder: wheel(folder / "v.whl", ASCEND), "has no package vllm"),
        (lambda folder: sdist(folder / "v.tar.gz", VLLM, "a/b/c/"), "has no package vllm"),
        (_damaged_zip, "cannot be read: "),
        (_damaged_name, "cannot be read: "),
        (lambda folder: os.mkfifo(folder / "f") or folder / "f", "is neither a regular file nor a folder"),
        (_cut_tar, "cannot be read: "),
    ],
)
def test_what_cannot_be_read_is_said(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Any, why: str
) -> None:
    (tmp_path / "made").mkdir()
    path = make(tmp_path / "made")
    assert run("drift", "--vllm", path) == 2
    assert f"{path} {why}" in capsys.readouterr().err


def test_links_in_archives_and_folders_are_ignored(site: Path, tmp_path: Path) -> None:
    secret = write(tmp_path, {"secret.py": "def helper(): 'secret'\n"}) / "secret.py"
    archive = tmp_path / "v.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            member = tarfile.TarInfo("vllm-2.0/vllm/proposer.py")
            member.type, member.linkname = kind, str(secret)
            tar.addfile(member)
    zipped = tmp_path / "v.whl"
    with zipfile.ZipFile(zipped, "w") as file:
        info = zipfile.ZipInfo("vllm/proposer.py")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(info, str(secret))
    folder = tmp_path / "linked"
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm/proposer.py").symlink_to(secret)
    for path in (archive, zipped, folder):
        with pytest.raises(archives.ArchiveError, match="has no package vllm"):
            archives.reader(path, "vllm", ["vllm.proposer"])


def test_a_member_that_is_too_large_is_refused(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "LARGEST_MEMBER", 1 << 20)
    files = {"vllm/proposer.py": "#" * (1 << 20) + "\n"}
    for path in (
        wheel(tmp_path / "v.whl", files),
        sdist(tmp_path / "v.tar.gz", files),
        write(tmp_path, files),
    ):
        with pytest.raises(archives.ArchiveError, match=r"proposer\.py is larger than 1 MiB"):
            archives.reader(path, "vllm", ["vllm.proposer"])
    # Not more than needed to tell: a small archive may unpack to more than fits into memory.
    asked: list[int] = []
    stream: Any = argparse.Namespace(read=lambda size=-1: asked.append(size) or b"")
    assert archives._limited(stream, "member") == b""
    assert asked == [(1 << 20) + 1]


def test_the_file_nearest_to_the_top_is_read_and_a_package_before_a_module(tmp_path: Path) -> None:
    path = wheel(
        tmp_path / "v.whl",
        {
            "build/vllm/a.py": "copy",
            "vllm/a.py": "right",
            "vllm/b.py": "module",
            "vllm/b/__init__.py": "package",
            "other/vllm/a.py": "copy",
            "vllm-2.0/build/vllm/c.py": "too deep",
        },
    )
    read = archives.reader(path, "vllm", ["vllm.a", "vllm.b", "vllm.c"])
    assert (read("vllm.a"), read("vllm.b")) == (b"right", b"package")
    with pytest.raises(fingerprints.NoSource):
        read("vllm.c")


def test_between_supported_pairs_each_patch_says_what_became_of_it(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    second = HostPair("1.1", "1.1")
    leaning = 'LEANS_ON = ("vllm.proposer:helper",)\n'
    write(site, {f"made_bodies/{name}.py": leaning for name in ("same", "gone", "moved", "new", "late")})
    patches = (
        PATCHES[0],
        Patch("spec_decode.same", "vllm.proposer", "", implementation="made_bodies.same"),
        Patch(
            "spec_decode.gone",
            "vllm.proposer",
            "",
            in_host_since="vllm 1.1",
            implementation="made_bodies.gone",
        ),
        Patch(
            "spec_decode.moved",
            "vllm.proposer",
            "",
            requires=("spec_decode.gone",),
            forms=(Form((second,), target="vllm.moved"),),
            implementation="made_bodies.moved",
        ),
        Patch("spec_decode.new", "vllm.proposer", "", hosts=(second,), implementation="made_bodies.new"),
        Patch(
            "spec_decode.late",
            "vllm.proposer",
            "",
            needed_since="vllm 1.1",
            implementation="made_bodies.late",
        ),
    )
    monkeypatch.setattr(registry, "load", lambda: Registry(patches))
    monkeypatch.setattr(hosts, "SUPPORTED", (PAIR, second))
    assert run("verify", "--update") == 0
    write(site, changed(VLLM, "return 1", "return 2"))
    monkeypatch.setattr(hosts, "installed", lambda: second)
    assert run("verify", "--update") == 0
    capsys.readouterr()
    monkeypatch.setattr(hosts, "installed", lambda: HostPair(None, None))
    between = ("--base-vllm", "1.0", "--base-vllm-ascend", "1.0rc1", "--vllm", "1.1", "--vllm-ascend", "1.1")
    assert run("drift", *between, "--json") == 1
    content = json.loads(capsys.readouterr().out)
    assert (content["base"], content["given"]) == (str(PAIR), str(second))
    assert [tuple(row.values()) for row in content["patches"]] == [
        ("worker.limit", "untouched", ""),
        ("spec_decode.same", "the same form", "1 of 1 objects differ, verified on both"),
        ("spec_decode.gone", "unneeded", "in the host since vllm 1.1"),
        ("spec_decode.moved", "another form", "of vllm.moved"),
        ("spec_decode.new", "new", "not for the older pair"),
        ("spec_decode.late", "new", "needed since vllm 1.1"),
    ]
    assert run("drift", *between) == 1
    assert "from  vllm 1.0 + vllm-ascend 1.0rc1, as verified" in capsys.readouterr().out
    monkeypatch.setattr(registry, "load", lambda: Registry(patches[:3]))
    assert run("drift", *between) == 0


# What needed other code or another place from one supported pair to the next.
ANOTHER_FORM = [
    {
        "spec_decode.base_proposer",
        "spec_decode.draft_model_proposer",
        "spec_decode.next_token_ids",
        "spec_decode.kernels.ascend_prepare_inputs",
    },
    set(),
    {
        "spec_decode.base_proposer",
        "spec_decode.next_token_ids",
        "spec_decode.kernels.prepare_inputs",
        "spec_decode.kernels.prepare_next_token",
        "spec_decode.kernels.copy_and_expand_inputs",
        "spec_decode.kernels.ascend_prepare_inputs",
        "model_runner.async_output_tokens",
    },
]


@pytest.mark.parametrize(
    ("older", "newer", "expected"),
    [(*pair, form) for pair, form in zip(itertools.pairwise(hosts.SUPPORTED), ANOTHER_FORM, strict=True)],
)
def test_between_neighbouring_pairs_exactly_the_adapted_patches_are_in_another_form(
    capsys: pytest.CaptureFixture[str], older: HostPair, newer: HostPair, expected: set[str]
) -> None:
    versions = ("--base-vllm", older.vllm, "--base-vllm-ascend", older.vllm_ascend)
    code = run("drift", *versions, "--vllm", newer.vllm, "--vllm-ascend", newer.vllm_ascend, "--json")
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)["patches"]}
    assert {name for name, row in rows.items() if row["verdict"] == "another form"} == expected
    assert code == (1 if expected else 0)
    assert len(rows) == len(list(registry.load(others=False)))
