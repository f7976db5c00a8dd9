# SPDX-License-Identifier: Apache-2.0
"""Every kernel, in every way its launcher can have it compiled, through Ascend's public compilers."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from ascend_specpatch.kernels import TABLE

from . import baseline, report
from .cases import SAME_FOR_A_MODEL, called, files, jit_functions, ours, specialised
from .conftest import Compiled
from .counts import count
from .hosts import NoHost
from .jobs import JOBS, SERIAL, Job
from .lints import forbidden
from .offsets import below_zero
from .toolchain import TARGETS, UNIFIED_BUFFER_BYTES, Case, CompileError, try_950

each_case = pytest.mark.parametrize("case", ours(), ids=str)
each_target = pytest.mark.parametrize("target", TARGETS)


@pytest.mark.parametrize("file", files(), ids=lambda file: file.stem)
def test_every_triton_function_is_compiled(file: Path) -> None:
    """It is the kernel of a case, or is called by a Triton function."""
    in_cases = {case.kernel.fn.__name__ for case in ours() if case.name.split()[0] == file.stem}
    assert set(jit_functions(file)) <= called() | in_cases, (
        "add to compile_cases() of this file what its launcher launches"
    )


@pytest.mark.parametrize("name", TABLE)
def test_what_stands_in_is_compiled(name: str) -> None:
    module = importlib.import_module(f"ascend_specpatch.kernels.{TABLE[name]}")
    file = getattr(module, name.partition(":")[2]).__module__.rpartition(".")[2]
    assert any(case.name.split()[0] == file for case in ours())


@each_target
@each_case
def test_it_compiles_into_the_unified_buffer(case: Case, target: str, compiled: Compiled) -> None:
    counts = count(compiled.hivm(case, TARGETS[target]))
    assert counts.ub_bytes <= UNIFIED_BUFFER_BYTES


@each_case
def test_it_does_nothing_that_an_npu_cannot(case: Case, compiled: Compiled) -> None:
    found = forbidden(compiled.lowered(case).ttir)
    assert found == set()


@each_case
def test_it_reaches_below_no_pointer(case: Case, compiled: Compiled) -> None:
    found = below_zero(compiled.lowered(case).ttir, list(case.signature))
    assert found == []


@each_case
def test_no_batch_has_a_variant_of_its_own(case: Case) -> None:
    wanted = [scalar for scalar in specialised(case) if not SAME_FOR_A_MODEL.fullmatch(scalar)]
    assert not wanted, (
        "name these in do_not_specialize: Triton compiles anew when one is 1 or a multiple of 16"
    )


@each_case
def test_it_walks_elements_one_by_one_only_where_upstream_does(case: Case, compiled: Compiled) -> None:
    allowed = case.name.split()[0] in SERIAL
    assert allowed or count(compiled.hivm(case, TARGETS["910B3"])).scalar_loops == 0


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_no_count_is_above_vllm_ascends(job: Job, compiled: Compiled) -> None:
    try:
        host = job.host_case()
    except NoHost as error:
        pytest.skip(f"not compared: {error}")
    target = TARGETS["910B3"]
    above = count(compiled.hivm(job.our_case(), target)).above(count(compiled.hivm(host, target)))
    assert not above, "count: (ours, vllm-ascend's)"


def test_counts_are_those_of_the_baseline(compiled: Compiled, rewrite: bool) -> None:
    now = {
        case.name: {target: count(compiled.hivm(case, TARGETS[target])) for target in TARGETS}
        for case in ours()
    }
    if rewrite:
        baseline.write(now)
    assert baseline.difference(baseline.read(), now) == [], "`make ascend-baseline` writes it anew"


def test_the_table_in_docs_is_of_these_kernels(compiled: Compiled, rewrite: bool) -> None:
    try:
        table = report.table(compiled)
    except NoHost as error:
        pytest.skip(f"not compared: {error}")
    if rewrite:
        report.PAGE.write_text(table, encoding="utf-8")
    assert report.PAGE.read_text(encoding="utf-8") == table, "`make ascend-baseline` writes it anew"


@pytest.mark.parametrize("case", {case.kernel: case for case in reversed(ours())}.values(), ids=str)
def test_950(case: Case) -> None:
    """Reported, not required: the first case of each kernel, for the compiler takes seconds."""
    try:
        assert try_950(case) <= UNIFIED_BUFFER_BYTES
    except CompileError as error:
        pytest.skip(f"the 950's compiler does not take it: {str(error)[:200]}")
