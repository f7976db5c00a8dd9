# SPDX-License-Identifier: Apache-2.0
"""What cannot work ends at start-up, with an error that says what to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e import host
from tests.e2e.cases import Case
from tests.e2e.checks import Check


@pytest.mark.parametrize(
    ("case", "words"),
    [
        pytest.param(
            Case("llama", "draft_model", "other_vocab"),
            ("vocab_size=320", "vocab_size=256"),
            id="vocabulary-sizes-differ",
        ),
        pytest.param(Case("mrope", "draft_model", "mrope"), ("M-RoPE",), id="m-rope-target-and-draft"),
        pytest.param(Case("mrope", "draft_model", "llama"), ("M-RoPE",), id="m-rope-target"),
        pytest.param(
            Case("llama", "draft_model", "llama", spec={"disable_padded_drafter_batch": True}),
            ("disable_padded_drafter_batch",),
            id="unpadded-drafter-batch",
        ),
        pytest.param(Case("dsv3_hi", "draft_model", "llama"), ("MLA",), id="another-kind-of-attention"),
    ],
)
def test_draft_model_is_refused(check: Check, case: Case, words: tuple[str, ...]) -> None:
    outcome = check.harness.run(case)
    assert outcome.error is not None, "the engine started"
    assert all(word in outcome.error for word in words), f"{outcome.error}\n{outcome.last_lines()}"


def test_draft_tensor_parallel_size_must_be_the_targets(check: Check) -> None:
    engine = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    spec = {"draft_tensor_parallel_size": 1}
    case = Case("llama", "draft_model", "llama", engine=engine, spec=spec, processes="spawn", timeout=300)
    outcome = check.harness.run(case)
    assert outcome.error is not None, "the engine started"
    # The workers find out; vLLM's own error names no cause but the log above it.
    assert "Please pass 'draft_tensor_parallel_size'" in outcome.log_text(), outcome.last_lines()


def test_unsupported_hosts_run_unpatched_with_one_warning(check: Check, tmp_path: Path) -> None:
    _pretend_installed(tmp_path, "vllm-ascend", "0.15.0rc1")
    outcome = check.same_text(
        Case("pred", "eagle", "pred_eagle", env={"PYTHONPATH": str(tmp_path)}, fresh=True, timeout=240)
    )
    assert "vllm.v1.spec_decode.eagle.EagleProposer" in outcome.facts["drafter_bases"]
    assert host.OUR_LOOP not in outcome.facts["drafter_bases"]
    # It comes before vLLM sets up its logging, so the line has no level.
    warnings = [line for line in outcome.log_text().splitlines() if "ascend-specpatch" in line]
    assert len(warnings) == 1, warnings
    assert "0.15.0rc1" in warnings[0]


def _pretend_installed(directory: Path, name: str, version: str) -> None:
    """Metadata of another version, found before the real one, with the entry points that make it a plugin."""
    import importlib.metadata

    real = importlib.metadata.distribution(name)
    info = directory / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(real.read_text("entry_points.txt") or "")
