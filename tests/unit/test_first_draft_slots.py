# SPDX-License-Identifier: Apache-2.0
"""spec_decode.first_draft_slots: when slots for drafts are reserved. Needs no host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ascend_specpatch.patches.spec_decode.first_draft_slots import reserving

FREE = 10


def scheduler(*running: str) -> Any:
    def allocate_slots(request: str, num_new_tokens: int, *, num_lookahead_tokens: int = 0) -> str | None:
        slots = num_new_tokens + num_lookahead_tokens
        return f"{request}: {slots}" if slots <= FREE else None

    manager = SimpleNamespace(allocate_slots=allocate_slots)
    return SimpleNamespace(kv_cache_manager=manager, num_lookahead_tokens=3, running=list(running))


@pytest.mark.parametrize("asked", [0, 3])
@pytest.mark.parametrize("running", [(), ("other",)])
def test_slots_for_drafts_are_reserved_whatever_was_asked(asked: int, running: tuple[str, ...]) -> None:
    assert reserving(scheduler(*running))("new", 7, num_lookahead_tokens=asked) == "new: 10"


def test_a_request_that_fits_without_them_only_waits_for_others() -> None:
    assert reserving(scheduler("other"))("new", 8, num_lookahead_tokens=0) is None


def test_where_there_are_no_others_it_runs() -> None:
    assert reserving(scheduler())("new", 8, num_lookahead_tokens=0) == "new: 8"
    assert reserving(scheduler())("new", 11, num_lookahead_tokens=0) is None
