# SPDX-License-Identifier: Apache-2.0
"""The gate itself: kernels that must not pass do not, each for its own reason."""

from __future__ import annotations

import pytest

from .bad_kernels import (
    ALSO_INT64,
    BELOW_ZERO,
    DO_NOT_COMPILE,
    ELEMENT_BY_ELEMENT,
    FINE,
    FORBIDDEN,
    SPECIALISED,
)
from .cases import SAME_FOR_A_MODEL, specialised
from .counts import Counts, count
from .lints import forbidden
from .offsets import below_zero
from .toolchain import TARGETS, Case, CompileError, lower, to_hivm


@pytest.mark.parametrize("what", DO_NOT_COMPILE)
def test_a_kernel_that_does_not_compile(what: str) -> None:
    case, stage, word = DO_NOT_COMPILE[what]
    with pytest.raises(CompileError) as refused:
        to_hivm(lower(case), TARGETS["910B3"])
    assert refused.value.stage == stage
    assert word in str(refused.value)


@pytest.mark.parametrize("what", FORBIDDEN)
def test_a_kernel_that_compiles_and_is_wrong(what: str) -> None:
    assert forbidden(lower(FORBIDDEN[what]).ttir) == {what}


def test_a_reduction_of_int64() -> None:
    assert forbidden(lower(ALSO_INT64).ttir) == {"int64 vector"}


@pytest.mark.parametrize("case", BELOW_ZERO, ids=str)
def test_an_offset_below_zero(case: Case) -> None:
    assert below_zero(lower(case).ttir, list(case.signature))


@pytest.mark.parametrize("case", ELEMENT_BY_ELEMENT, ids=str)
def test_a_loop_over_single_elements(case: Case) -> None:
    assert count(to_hivm(lower(case), TARGETS["910B3"])).scalar_loops > 0


def test_a_scalar_that_makes_variants() -> None:
    assert [name for name in specialised(SPECIALISED) if not SAME_FOR_A_MODEL.fullmatch(name)] == ["n"]


def test_a_kernel_that_is_fine() -> None:
    lowered = lower(FINE)
    assert not forbidden(lowered.ttir)
    assert not below_zero(lowered.ttir, list(FINE.signature))
    # Three vectors of 128 fp32, one of which the sum may take over. Each load clears its vector first.
    counts = count(to_hivm(lowered, TARGETS["910B3"]))
    assert 2 * 128 * 4 <= counts.ub_bytes <= 3 * 128 * 4
    assert (counts.dma_in, counts.dma_out, counts.vector) == (2, 1, 3)
    assert (counts.scalar_gm, counts.scalar_ub, counts.loops, counts.scalar_loops) == (0, 0, 0, 0)
    assert counts.flags > 0
    assert counts.barriers > 0


def test_counts_above_others() -> None:
    few = Counts(*range(11))
    more = Counts(100, *range(1, 10), 11)
    assert more.above(few) == {"branches": (11, 10)}
    assert few.above(more) == {}
