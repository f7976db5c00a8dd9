# SPDX-License-Identifier: Apache-2.0
"""A patch that fails in the worst ways leaves its target as it was, and the host imports."""

from __future__ import annotations

import pytest

from .conftest import FakeHosts

NO_TEXT = """
class NoText(Exception):
    def __str__(self):
        raise ValueError("no text")

def apply(edit):
    edit.set(edit.module, "helper", lambda: "half")
    raise NoText
"""


@pytest.mark.parametrize("activation", ["ascend_specpatch.arm", "bootstrap.register"])
def test_an_error_that_cannot_be_shown(fake_hosts: FakeHosts, activation: str) -> None:
    fake_hosts.write({"fake_patches/upstream.py": NO_TEXT})
    first = "" if activation.endswith("arm") else "import vllm.proposer"
    found = fake_hosts.result(
        f"""
        {first}
        {activation}()
        import vllm.proposer
        from ascend_specpatch import report
        print(json.dumps([vllm.proposer.helper(), str(report.current().row("spec_decode.upstream").state)]))
        """
    )
    assert found == ["upstream", "refused"]


def test_the_module_of_a_requirement_exits(fake_hosts: FakeHosts) -> None:
    fake_hosts.write(
        {
            "vllm/proposer.py": "raise SystemExit(5)\n",
            "vllm_ascend/drafter.py": "class Drafter:\n    pass\n",
        }
    )
    found = fake_hosts.result(
        """
        ascend_specpatch.arm()
        import vllm_ascend.drafter
        from ascend_specpatch import report
        print(json.dumps(str(report.current().row("spec_decode.drafter").state)))
        """
    )
    assert found == "refused"


def test_status_where_a_host_exits_as_it_is_imported(fake_hosts: FakeHosts) -> None:
    fake_hosts.write({"vllm/proposer.py": "raise SystemExit(0)\n"})
    done = fake_hosts.run("from ascend_specpatch.cli import main\nsys.exit(main(['status', '--import']))")
    assert done.returncode == 1
    assert "spec_decode.upstream" in done.stdout


def test_a_reason_is_one_line_of_plain_characters(fake_hosts: FakeHosts) -> None:
    fake_hosts.write({"fake_patches/upstream.py": "def apply(edit): raise ValueError('a\\nb\\x1b[2J')\n"})
    done = fake_hosts.run("from ascend_specpatch.cli import main\nsys.exit(main(['status', '--import']))")
    (row,) = (line for line in done.stdout.splitlines() if line.startswith("spec_decode.upstream"))
    assert row.endswith("in apply)")
    assert "\x1b" not in done.stdout
