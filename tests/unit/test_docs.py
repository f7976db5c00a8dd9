# SPDX-License-Identifier: Apache-2.0
"""The documentation says what the code does: tables, commands, pictures and links."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from ascend_specpatch import hosts, registry, report, settings

DOCUMENTS = (
    "README.md",
    "CHANGELOG.md",
    "docs/activation.md",
    "docs/ascend_compile.md",
    "docs/development.md",
    "docs/hosts.md",
    "docs/kernels.md",
    "docs/performance.md",
)
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def run(checkout: Path, *command: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ASCEND_SPECPATCH")}
    path = os.pathsep.join((os.path.dirname(sys.executable), kept.get("PATH", "")))
    ours = {"PATH": path, "PYTHONPATH": str(checkout / ".editable")}
    done = subprocess.run(command, env={**kept, **ours}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def table(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its own head, and without the marks of code."""
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    assert rows, f"no table below {heading}"
    return [[re.sub(r"^`([^`]*)`$", r"\1", cell.strip()) for cell in row] for row in rows[2:]]


def test_the_readme_lists_every_patch_in_order_as_the_command_does(checkout: Path) -> None:
    listed = json.loads(run(checkout, sys.executable, "-m", "ascend_specpatch.cli", "list", "--json"))
    expected = [[patch["id"], patch["target"], patch["summary"]] for patch in listed["patches"]]
    assert table((checkout / "README.md").read_text(), "What is patched") == expected


def test_the_readme_lists_every_setting_with_its_values(checkout: Path) -> None:
    rows = {row[0]: row[2] for row in table((checkout / "README.md").read_text(), "Settings")}
    assert tuple(rows) == settings.VARIABLES
    assert all(f"`{kernels}`" in rows["ASCEND_SPECPATCH_KERNELS"] for kernels in settings.KERNELS)


def test_the_readme_names_the_supported_hosts_and_installs_them(checkout: Path) -> None:
    text = (checkout / "README.md").read_text()
    patches = [*registry.load(others=False)]
    needed = {pair: sum(patch.is_needed_on(pair) for patch in patches) for pair in hosts.SUPPORTED}
    assert table(text, "Host pairs") == [
        [str(pair.vllm), str(pair.vllm_ascend), f"{count} of {len(patches)}"]
        for pair, count in needed.items()
    ]
    (installed,) = re.findall(r"pip install vllm==(\S+) vllm-ascend==(\S+)", text)
    assert hosts.HostPair(*installed) in hosts.SUPPORTED


def test_the_page_of_host_pairs_says_what_is_patched_where(checkout: Path) -> None:
    def cell(patch: registry.Patch, pair: hosts.HostPair) -> str:
        if unneeded := patch.unneeded_on(pair):
            word = "in" if unneeded.startswith("in the host") else "from"
            return f"{word} {unneeded.partition(' since ')[2].removeprefix('vllm-ascend ')}"
        forms = [form.folder or "yes, elsewhere" for form in patch.forms if pair in form.hosts]
        return (forms or ["yes"])[0] if patch.is_for(pair) else "-"

    expected = [[p.id, *(cell(p, pair) for pair in hosts.SUPPORTED)] for p in registry.load(others=False)]
    rows = "\n".join(f"| {' | '.join((f'`{row[0]}`', *row[1:]))} |" for row in expected)
    shown = table((checkout / "docs" / "hosts.md").read_text(), "What is patched where")
    assert shown == expected, f"the table is to be:\n{rows}"


def test_every_supported_pair_has_an_environment(checkout: Path) -> None:
    for pair in hosts.SUPPORTED:
        pins, facts = (checkout / "tests" / "hosts" / f"{pair.vllm}.{kind}" for kind in ("txt", "mk"))
        assert f"\nvllm-ascend=={pair.vllm_ascend}\n" in pins.read_text()
        assert f"\nHOST_VLLM := vllm=={pair.vllm}\n" in facts.read_text()


def test_the_readme_says_that_no_npu_was_used(checkout: Path) -> None:
    assert "not run on NPU hardware" in (checkout / "README.md").read_text()


def test_the_log_line_it_shows_is_that_of_a_process_that_has_loaded_no_target_yet(checkout: Path) -> None:
    plan = registry.load().choose(settings.Settings(), hosts.SUPPORTED[0])
    assert f"    {report.Report(plan).line()}\n" in (checkout / "docs" / "activation.md").read_text()


def test_the_changelog_has_the_version_of_the_package(checkout: Path) -> None:
    from ascend_specpatch import __version__

    assert f"\n## [{__version__}]" in (checkout / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(checkout: Path, document: str) -> None:
    targets = LINK.findall((checkout / document).read_text())
    local = [target for target in targets if "://" not in target]
    missing = [target for target in local if not (checkout / document).parent.joinpath(target).exists()]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_make_targets_it_names_exist(checkout: Path, document: str) -> None:
    named = re.findall(
        r"(?:^ {4}|`)make ([a-z0-9-][a-z0-9 -]*)", (checkout / document).read_text(), re.MULTILINE
    )
    known = set(re.findall(r"^([a-z0-9-]+):", (checkout / "Makefile").read_text(), re.MULTILINE))
    assert {target for targets in named for target in targets.split()} <= known


def test_the_pictures_are_what_their_texts_say(checkout: Path) -> None:
    run(checkout, sys.executable, str(checkout / "docs" / "draw.py"), "--check")


def consoles(checkout: Path) -> list[tuple[str, str]]:
    """Command and output of every console block of the documentation."""
    text = "".join((checkout / document).read_text() for document in DOCUMENTS)
    blocks = [block.removeprefix("$ ").partition("\n") for block in CONSOLE.findall(text)]
    return [(command, output) for command, _, output in blocks]


def test_commands_print_what_is_shown(checkout: Path) -> None:
    """With the real hosts: one import of everything that is patched."""
    try:
        pair = hosts.HostPair(version("vllm"), version("vllm-ascend"))
    except PackageNotFoundError:
        pytest.skip("the hosts are not installed: make env")
    if pair != hosts.SUPPORTED[0]:
        pytest.skip(f"the documentation shows {hosts.SUPPORTED[0]}")
    shown = consoles(checkout)
    assert shown
    for command, output in shown:
        here, _, _ = run(checkout, *command.split()).partition("\nRunning processes\n")
        assert here == output
