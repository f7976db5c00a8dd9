# SPDX-License-Identifier: Apache-2.0
"""What happens when something is wrong: the hosts stay whole, the message says what to do, STRICT stops."""

from __future__ import annotations

import json

import pytest

from ascend_specpatch import hosts

from .conftest import PATCHED, UNPATCHED, FakeHosts, visible

RAISES_HALF_WAY = {
    "fake_patches/drafter.py": """
        def apply(edit):
            edit.set(edit.module, "Drafter", object)
            edit.set(edit.module, "added", 1)
            raise LookupError("no such method")
        """
}
IMPORT_AND_PRINT = "ascend_specpatch.arm(); print(json.dumps(state()))"


def test_a_patch_that_raises_is_undone_and_refused_with_its_dependents(fake_hosts: FakeHosts) -> None:
    fake_hosts.write(RAISES_HALF_WAY)
    done = fake_hosts.run(
        """
        ascend_specpatch.arm()
        import vllm_ascend.drafter
        from ascend_specpatch import report
        reasons = {row.id: row.reason for row in report.current().rows()}
        print(json.dumps([hasattr(vllm_ascend.drafter, "added"), reasons]))
        print(json.dumps(state()))
        """
    )
    assert done.returncode == 0, done.stderr
    (added, reasons), state = map(json.loads, done.stdout.splitlines())
    assert added is False
    assert state["drafter"] == UNPATCHED["drafter"]
    assert state["runner"] == UNPATCHED["runner"]
    assert state["upstream"] == PATCHED["upstream"]
    assert state["states"] == {
        "worker.lazy": "applied",
        "spec_decode.upstream": "applied",
        "spec_decode.drafter": "refused",
        "model_runner.runner": "refused",
    }
    assert "LookupError: no such method" in reasons["spec_decode.drafter"]
    assert "drafter.py:5 in apply)" in reasons["spec_decode.drafter"]
    assert reasons["model_runner.runner"] == "needs spec_decode.drafter, which is refused"
    warnings = done.stderr.splitlines()
    assert len(warnings) == 2
    assert "ASCEND_SPECPATCH_DISABLE=spec_decode.drafter" in warnings[0]


def test_strict_stops_the_import_of_the_target_and_leaves_no_module_behind(fake_hosts: FakeHosts) -> None:
    fake_hosts.write(RAISES_HALF_WAY)
    found = fake_hosts.result(
        """
        ascend_specpatch.arm()
        try:
            import vllm_ascend.drafter
        except ImportError:
            print(json.dumps("swallowed by an optional import"))
        except RuntimeError as error:
            left = "vllm_ascend.drafter" in sys.modules
            print(json.dumps([str(error), type(error.__cause__).__name__, left]))
        """,
        ASCEND_SPECPATCH_STRICT="1",
    )
    assert "spec_decode.drafter is refused: LookupError" in found[0]
    assert found[1:] == ["LookupError", False]


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("ASCEND_SPECPATCH", "maybe", "use 1 (true, yes, on) or 0"),
        ("ASCEND_SPECPATCH_DISABLE", "spec_decode.draftre", "did you mean spec_decode.drafter?"),
        ("ASCEND_SPECPATCH_DISBALE", "worker", "did you mean ASCEND_SPECPATCH_DISABLE?"),
        ("ASCEND_SPECPATCH_KERNELS", "cuda", "use one of triton, torch, upstream"),
    ],
)
def test_a_malformed_setting_is_one_warning_and_nothing_is_patched(
    fake_hosts: FakeHosts, variable: str, value: str, says: str
) -> None:
    done = fake_hosts.run(
        "ascend_specpatch.arm(); import vllm; bootstrap.register(); print(json.dumps(state()))",
        **{variable: value},
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert says in done.stderr
    assert "?." not in done.stderr
    state = json.loads(done.stdout)
    assert visible(state) == UNPATCHED
    assert set(state["states"].values()) == {"refused"}

    strict = fake_hosts.run(
        "ascend_specpatch.arm(); import vllm", **{variable: value, "ASCEND_SPECPATCH_STRICT": "1"}
    )
    assert strict.returncode == 1
    assert "SettingsError" in strict.stderr
    assert says in strict.stderr


def test_a_strict_that_cannot_be_read_stops(fake_hosts: FakeHosts) -> None:
    done = fake_hosts.run("ascend_specpatch.arm(); import vllm", ASCEND_SPECPATCH_STRICT="yess")
    assert done.returncode == 1
    assert "ASCEND_SPECPATCH_STRICT=yess" in done.stderr


def test_under_strict_a_swallowed_error_does_not_let_the_next_import_pass_unpatched(
    fake_hosts: FakeHosts,
) -> None:
    done = fake_hosts.run(
        """
        ascend_specpatch.arm()
        try:
            import vllm
        except Exception:
            pass
        import vllm
        """,
        ASCEND_SPECPATCH="maybe",
        ASCEND_SPECPATCH_STRICT="1",
    )
    assert done.returncode == 1
    assert "SettingsError" in done.stderr


@pytest.mark.parametrize("again", ["0", "1"])
def test_under_strict_a_swallowed_refusal_stops_the_plugin_and_is_the_one_that_is_named(
    fake_hosts: FakeHosts, again: str
) -> None:
    # The second patch is still to be applied when the first one's error takes the target out of sys.modules.
    fake_hosts.write(
        {
            "fake_patches/__init__.py": """
                from ascend_specpatch.registry import Patch
                PATCHES = (
                    Patch("spec_decode.a", "vllm_ascend.drafter", "", implementation="fake_patches.drafter"),
                    Patch("spec_decode.b", "vllm_ascend.drafter", "", implementation="fake_patches.worker"),
                )
                """,
            **RAISES_HALF_WAY,
        }
    )
    done = fake_hosts.run(
        """
        ascend_specpatch.arm()
        try:
            import vllm_ascend.drafter
        except Exception:
            pass
        if os.environ["IMPORT_AGAIN"] == "1":
            try:
                import vllm_ascend.drafter
            except Exception as error:
                assert "spec_decode.a is refused" in str(error), error
            else:
                raise AssertionError("the target came in unpatched at the second try")
        try:
            bootstrap.register()
        except Exception as error:
            print(json.dumps([type(error).__name__, str(error)]))
        """,
        ASCEND_SPECPATCH_STRICT="1",
        IMPORT_AGAIN=again,
    )
    assert done.returncode == 0, done.stderr
    kind, text = json.loads(done.stdout)
    assert kind == "PatchRefused"
    assert "spec_decode.a is refused: LookupError: no such method" in text
    assert "ASCEND_SPECPATCH_DISABLE=spec_decode.a" in text


@pytest.mark.parametrize("strict", ["0", "1", "yess"])
def test_off_silences_a_mistake_in_any_other_setting(fake_hosts: FakeHosts, strict: str) -> None:
    done = fake_hosts.run(
        "ascend_specpatch.arm(); import vllm; bootstrap.register(); print(json.dumps(state()))",
        ASCEND_SPECPATCH="0",
        ASCEND_SPECPATCH_DISABLE="no.such",
        ASCEND_SPECPATCH_STRICT=strict,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert visible(json.loads(done.stdout)) == UNPATCHED


@pytest.mark.parametrize("route", ["ascend_specpatch.arm()", "import vllm_ascend.worker"])
def test_an_unsupported_pair_is_one_warning_that_names_the_supported_ones(
    fake_hosts: FakeHosts, route: str
) -> None:
    fake_hosts.install("vllm", "0.19.0+cpu")
    fake_hosts.install("vllm-ascend", "0.18.0")
    script = (
        f"{route}; import vllm_ascend; bootstrap.register(); bootstrap.register(); print(json.dumps(state()))"
    )
    done = fake_hosts.run(script)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "found vllm 0.19.0 + vllm-ascend 0.18.0, and the patches are for " in done.stderr
    assert all(str(pair) in done.stderr for pair in hosts.SUPPORTED)
    state = json.loads(done.stdout)
    assert visible(state) == UNPATCHED
    assert set(state["states"].values()) == {"not_for_this_host"}
    assert fake_hosts.run(script, ASCEND_SPECPATCH_STRICT="1").returncode == 1


def test_a_target_that_does_not_import_fails_as_without_us_and_is_patched_at_the_next_try(
    fake_hosts: FakeHosts,
) -> None:
    fake_hosts.write(
        {
            "vllm/proposer.py": "import os\nif 'BROKEN' in os.environ: raise OSError('no device')\n"
            + dedented()
        }
    )
    found = fake_hosts.result(
        """
        ascend_specpatch.arm()
        try:
            import vllm.proposer
        except OSError as error:
            del os.environ["BROKEN"]
            print(json.dumps([str(error), state()]))
        """,
        BROKEN="1",
    )
    assert found[0] == "no device"
    assert visible(found[1]) == PATCHED


def dedented() -> str:
    from textwrap import dedent

    from .conftest import HOSTS

    return dedent(HOSTS["vllm/proposer.py"])


def test_a_requirement_whose_module_does_not_import_refuses_the_dependent(fake_hosts: FakeHosts) -> None:
    fake_hosts.write(
        {
            "vllm/proposer.py": "raise OSError('no device')\n",
            "vllm_ascend/drafter.py": "class Drafter: pass\n",
        }
    )
    found = fake_hosts.result(
        """
        ascend_specpatch.arm()
        import vllm_ascend.drafter
        from ascend_specpatch import report
        reason = report.current().row("spec_decode.drafter").reason
        print(json.dumps([reason, vllm_ascend.drafter.Drafter.__qualname__]))
        """
    )
    assert found[0].startswith("needs spec_decode.upstream, whose module does not import: OSError: no device")
    assert found[1] == "Drafter"


def test_a_subclass_that_cannot_be_moved_refuses_the_patch_and_is_named(fake_hosts: FakeHosts) -> None:
    fake_hosts.write(
        {"vllm/user.py": "from vllm.proposer import EagleProposer, helper\nclass Sub(EagleProposer): pass\n"}
    )
    fake_hosts.write(
        {"fake_patches/upstream.py": "def apply(edit): edit.set(edit.module, 'EagleProposer', print)\n"}
    )
    found = fake_hosts.result(
        """
        import vllm.user
        before = vllm.user.EagleProposer
        bootstrap.register()
        from ascend_specpatch import report
        same = vllm.user.EagleProposer is before is vllm.proposer.EagleProposer
        print(json.dumps([report.current().row("spec_decode.upstream").reason, same]))
        """
    )
    assert "class vllm.user.Sub stands on EagleProposer" in found[0]
    assert found[1] is True


def test_an_engine_that_cannot_start_leaves_vllm_importable_and_stops_it_under_strict(
    fake_hosts: FakeHosts,
) -> None:
    script = "sys.modules['ascend_specpatch.hooks'] = None\nascend_specpatch.arm()\nimport vllm"
    done = fake_hosts.run(script)
    assert done.returncode == 0
    assert "vLLM runs unpatched" in done.stderr
    assert fake_hosts.run(script, ASCEND_SPECPATCH_STRICT="1").returncode == 1


def test_hiding_the_platform_plugin_is_said(fake_hosts: FakeHosts) -> None:
    done = fake_hosts.run("bootstrap.register()", VLLM_PLUGINS="ascend_specpatch")
    assert "hides vllm-ascend's platform plugin" in done.stderr
    assert fake_hosts.run("bootstrap.register()", VLLM_PLUGINS="ascend,ascend_specpatch").stderr == ""
