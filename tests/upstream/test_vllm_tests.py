# SPDX-License-Identifier: Apache-2.0
"""vLLM's own tests of what our kernels replace pass on the emulated NPU with them in place.

The tests are those of vLLM's source distribution, which ``make test-upstream`` fetches into ``build/``; none
is changed. What they ask of the machine is answered in ``plugin/upstream_answers.py``. Without Triton
kernels that are not replaced cannot be launched: with the hosts' all tests fail but two, which launch none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ascend_specpatch.kernels import TABLE

PLUGIN = Path(__file__).with_name("plugin")
MODELS = ("llama", "eagle_llama", "llama_draft")

TOO_MANY_REQUESTS = "test_rejection_sampling_approximates_target_distribution"

# The whole file; which tests that is stands here as well, so that one that vanishes or is skipped is missed.
REJECTION = "tests/v1/sample/test_rejection_sampler.py"
REJECTION_TESTS = frozenset(
    [
        "test_perfect_match",
        "test_early_mismatch",
        "test_multiple_sequences",
        "test_single_token_sequence",
        "test_empty_sequence",
        "test_multiple_mismatches",
        *(f"test_parametrized_cases[spec_tokens{i}-output_tokens{i}-expected{i}]" for i in range(3)),
        *(
            f"test_deterministic_when_seeded[20-{seeded}-{batch}-1000-{k}]"
            for seeded, batch, k in product((0.0, 0.5), (1, 4, 8), (1, 3, 5))
        ),
        TOO_MANY_REQUESTS,
        *(f"test_top_k[{top_k}]" for top_k in (1, 5, 99)),
        *(f"test_top_p[{top_p}]" for top_p in (0.5, 0.9, 0.99)),
        "test_frequency_penalties",
        "test_bad_words",
        "test_allowed_token_ids",
    ]
)

# Those of the file that prepare inputs; the others load models and propose, in attention backends for GPUs.
INPUTS = "tests/v1/spec_decode/test_eagle.py"
INPUTS_TESTS = frozenset(
    [
        "test_prepare_next_token_ids",
        "test_prepare_inputs",
        "test_prepare_inputs_padded",
        "test_set_inputs_first_pass_default_eagle",
        "test_set_inputs_first_pass_draft_model",
        "test_set_inputs_first_pass_parallel_drafting",
    ]
)
LAUNCH_NO_KERNEL = frozenset(["test_prepare_inputs", "test_set_inputs_first_pass_default_eagle"])


@pytest.fixture(scope="module")
def source(checkout: Path) -> Path:
    """The folder that holds ``tests`` of the installed vLLM's source distribution."""
    folder = checkout / "build" / f"vllm-{version('vllm')}"
    assert (folder / "tests").is_dir(), f"no {folder / 'tests'}: `make test-upstream` fetches vLLM's tests"
    return folder


@pytest.fixture(scope="module")
def models(checkout: Path, pytestconfig: pytest.Config) -> Path:
    # As tiny_models.by_release has it: the end-to-end tests use the same ones.
    directory = pytestconfig.cache.mkdir("tiny_models") / f"transformers-{version('transformers')}"
    write = [sys.executable, "-m", "tests.tiny_models", str(directory), *MODELS]
    subprocess.run(write, cwd=checkout, check=True, capture_output=True)
    return directory


@pytest.fixture(scope="module")
def environment(source: Path, models: Path, pytestconfig: pytest.Config) -> dict[str, str]:
    foreign = ("ASCEND_SPECPATCH", "NPU_EMU", "PYTEST", "VLLM")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    paths = (inherited.get("PYTHONPATH"), PLUGIN, source)
    return {
        **inherited,
        "UPSTREAM_SOURCE": str(source),
        "PYTHONPATH": os.pathsep.join(str(path) for path in paths if path),
        "UPSTREAM_MODELS": str(models),
        "VLLM_CACHE_ROOT": str(pytestconfig.cache.mkdir("vllm")),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


@dataclass(frozen=True)
class Results:
    outcomes: dict[str, str]  # by test: "passed", "skipped", or the first line of what it raised
    launched: frozenset[str]  # names of the Triton kernels


def run(environment: dict[str, str], results: Path, kernels: str, *options: str) -> Results:
    nothing = results.with_name("empty.ini")
    nothing.touch()
    source = environment["UPSTREAM_SOURCE"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "upstream_answers"),
            # vLLM's conftest clears GPUs and wants packages of its own; no test here uses a fixture of it.
            *("--noconftest", "-c", str(nothing), "--rootdir", source, "-p", "no:cacheprovider"),
            *("--junitxml", str(results), *options),
            # In this order: the second file leaves the NPU behind as torch's default device.
            *(f"{INPUTS}::{name}" for name in sorted(INPUTS_TESTS)),
            REJECTION,
        ],
        cwd=source,
        env={**environment, "ASCEND_SPECPATCH_KERNELS": kernels},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), f"pytest ran no tests:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
    xml = ElementTree.parse(results)
    properties = {p.attrib["name"]: p.attrib["value"] for p in xml.iter("property")}
    return Results(
        {case.attrib["name"]: _what_became_of(case) for case in xml.iter("testcase")},
        frozenset(properties["launched"].split()),
    )


def _what_became_of(case: ElementTree.Element) -> str:
    ending = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
    if ending is None:
        return "passed"
    return "skipped" if ending.tag == "skipped" else ending.attrib["message"].partition("\n")[0]


def test_all_pass_with_our_kernels(environment: dict[str, str], tmp_path: Path) -> None:
    results = run(environment, tmp_path / "results.xml", "torch")
    assert results.outcomes == dict.fromkeys(REJECTION_TESTS | INPUTS_TESTS, "passed")
    assert len(REJECTION_TESTS) == 37
    assert results.launched == frozenset()  # it was the references


def test_all_pass_with_our_kernels_in_the_interpreter(environment: dict[str, str], tmp_path: Path) -> None:
    """But for the one with 111,110 requests, for which the interpreter takes longer than five minutes."""
    results = run(
        {**environment, "NPU_EMU_TRITON": "1"},
        tmp_path / "results.xml",
        "triton",
        f"--deselect={REJECTION}::{TOO_MANY_REQUESTS}",
    )
    expected = (REJECTION_TESTS | INPUTS_TESTS) - {TOO_MANY_REQUESTS}
    assert results.outcomes == dict.fromkeys(expected, "passed")
    assert results.launched, "no Triton kernel was launched"
    assert not results.launched & {name.partition(":")[2] for name in TABLE}, (
        "kernels of a host were launched"
    )


def test_none_that_launches_a_kernel_passes_with_the_hosts(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """So that the others show something."""
    outcomes = run(environment, tmp_path / "results.xml", "upstream").outcomes
    assert outcomes.keys() == REJECTION_TESTS | INPUTS_TESTS
    assert {name for name, outcome in outcomes.items() if outcome == "passed"} == LAUNCH_NO_KERNEL
    reasons = {outcome for name, outcome in outcomes.items() if name not in LAUNCH_NO_KERNEL}
    assert all("the NPU emulator has no Triton kernel vllm." in reason for reason in reasons), reasons
