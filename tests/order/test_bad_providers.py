# SPDX-License-Identifier: Apache-2.0
"""Whatever is wrong with another distribution, in its code, its metadata or its patches, ours are applied."""

from __future__ import annotations

import json

import pytest

from .conftest import PATCHED, UNPATCHED, FakeHosts, visible

PATCH = "PATCHES = Patch('worker.other', 'vllm.extra', 's', implementation='other.body'{})\n"
METADATA = b"Metadata-Version: 2.1\nName: other-patches\nVersion: 1.0\n"
IMPORT = "ascend_specpatch.arm()\nprint(json.dumps(state()))\n"


def provide(
    fake_hosts: FakeHosts, patches: str, *, metadata: bytes = METADATA, more_points: bytes = b""
) -> None:
    """Install a distribution whose module ``other`` has ``patches``."""
    fake_hosts.write(
        {
            "other/__init__.py": f"from ascend_specpatch.registry import Patch\n{patches}",
            "other/body.py": "def apply(edit): pass\n",
            "vllm/extra.py": "",
        }
    )
    folder = fake_hosts.folder / "other_patches-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_bytes(metadata)
    (folder / "entry_points.txt").write_bytes(
        b"[ascend_specpatch.patches]\nother = other:PATCHES\n" + more_points
    )


def assert_ours_are_applied(fake_hosts: FakeHosts) -> None:
    done = fake_hosts.run(IMPORT)
    assert done.returncode == 0, done.stderr
    assert visible(json.loads(done.stdout.splitlines()[-1])) == PATCHED, done.stderr


@pytest.mark.parametrize("field", ["hosts='0.16.0'", "hosts=5", "hosts=('0.16.0')"])
def test_a_patch_whose_hosts_are_no_pairs(fake_hosts: FakeHosts, field: str) -> None:
    provide(fake_hosts, PATCH.format(f", {field}"))
    assert_ours_are_applied(fake_hosts)


def test_a_distribution_that_exits_as_it_is_loaded(fake_hosts: FakeHosts) -> None:
    provide(fake_hosts, "raise SystemExit('other needs a device')\n")
    assert_ours_are_applied(fake_hosts)


def test_a_distribution_whose_error_cannot_be_shown(fake_hosts: FakeHosts) -> None:
    provide(fake_hosts, "class E(Exception):\n    def __str__(self): raise ValueError\nraise E\n")
    assert_ours_are_applied(fake_hosts)


@pytest.mark.parametrize("metadata", [b"", b"Metadata-Version: 2.1\n", METADATA + b"Author: \xe9\n"])
def test_a_distribution_with_damaged_metadata(fake_hosts: FakeHosts, metadata: bytes) -> None:
    provide(fake_hosts, PATCH.format(""), metadata=metadata)
    assert_ours_are_applied(fake_hosts)


@pytest.mark.parametrize(
    ("folder", "points"),
    [("unrelated-1.0.dist-info", b"[console_scripts]\n\xe9 = a:b\n"), ("-1.0.dist-info", b"[x]\na = b:c\n")],
)
def test_an_unrelated_distribution_that_is_damaged(fake_hosts: FakeHosts, folder: str, points: bytes) -> None:
    path = fake_hosts.folder / folder
    path.mkdir()
    (path / "entry_points.txt").write_bytes(points)
    if not folder.startswith("-"):
        (path / "METADATA").write_bytes(b"Metadata-Version: 2.1\nName: unrelated\nVersion: 1.0\n")
    assert_ours_are_applied(fake_hosts)


def test_host_metadata_of_another_encoding_counts_as_none(fake_hosts: FakeHosts) -> None:
    path = fake_hosts.folder / "vllm-0.16.0.dist-info" / "METADATA"
    path.write_bytes(path.read_bytes() + b"Author: \xe9\n")
    done = fake_hosts.run(IMPORT)
    assert done.returncode == 0, done.stderr
    assert visible(json.loads(done.stdout.splitlines()[-1])) == UNPATCHED
    assert "found no vllm + vllm-ascend 0.16.0rc1" in done.stderr


def test_a_long_chain_of_requirements_that_is_listed_backwards(fake_hosts: FakeHosts) -> None:
    provide(
        fake_hosts,
        "PATCHES = [Patch(f'worker.m{i}', 'vllm.extra', 's', implementation='other.body',\n"
        "    requires=(f'worker.m{i - 1}',) if i else ()) for i in reversed(range(1200))]\n",
    )
    assert_ours_are_applied(fake_hosts)


@pytest.mark.parametrize("command", [["list", "--json"], ["explain", "worker.other"]])
def test_a_patch_whose_leans_on_is_no_literal_breaks_no_command(
    fake_hosts: FakeHosts, command: list[str]
) -> None:
    provide(fake_hosts, PATCH.format(""))
    fake_hosts.write({"other/body.py": "LEANS_ON = tuple(x for x in 'ab')\ndef apply(edit): pass\n"})
    done = fake_hosts.run(f"from ascend_specpatch.cli import main\nsys.exit(main({command!r}))")
    assert "Traceback" not in done.stderr


def test_what_a_distribution_prints_is_not_in_the_json(fake_hosts: FakeHosts) -> None:
    provide(fake_hosts, f"print('hello')\n{PATCH.format('')}")
    done = fake_hosts.run("from ascend_specpatch.cli import main\nsys.exit(main(['list', '--json']))")
    json.loads(done.stdout)


OFF = """
ascend_specpatch.arm()
import vllm
bootstrap.register()
print("alive")
"""


@pytest.mark.parametrize(
    ("patches", "metadata"),
    [
        ("raise SystemExit(7)\n", METADATA),
        ("print('loaded')\nPATCHES = ()\n", METADATA),
        ("PATCHES = ()\n", b""),
    ],
)
def test_off_is_off_also_for_vllms_plugin(fake_hosts: FakeHosts, patches: str, metadata: bytes) -> None:
    provide(fake_hosts, patches, metadata=metadata)
    done = fake_hosts.run(OFF, ASCEND_SPECPATCH="0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")
