# SPDX-License-Identifier: Apache-2.0
"""spec_decode.first_draft_slots

What: a request that starts, or starts again after preemption, is given KV slots for its first drafts too.
Why: vLLM's scheduler reserves slots for drafted tokens in every step but the one in which nothing of a
    request is computed yet, because a KV connector compares local and remote blocks there. Drafts that
    cross the end of a block are then drafted over what the block table holds behind the request's blocks:
    the null block, which all such requests share, or a block that an earlier request in this row had and
    another one has now. Text stays right, drafts do not.
How: where no KV connector is used, ``allocate_slots`` of the scheduler's KVCacheManager always reserves the
    scheduler's ``num_lookahead_tokens``.
Until: vLLM's scheduler reserves them where it has no connector.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.core.kv_cache_manager:KVCacheManager.allocate_slots",
    "vllm.v1.core.sched.scheduler:Scheduler.__init__",
    # Who calls it, with num_lookahead_tokens by name.
    "vllm.v1.core.sched.scheduler:Scheduler.schedule",
    "vllm_ascend.core.recompute_scheduler:RecomputeScheduler.schedule",
    "vllm_ascend.core.scheduler_dynamic_batch:SchedulerDynamicBatch.schedule",
    "vllm_ascend.patch.platform.patch_balance_schedule:BalanceScheduler.schedule",
)


def reserving(scheduler: Any) -> Callable[..., Any]:
    """``allocate_slots`` of a scheduler's KVCacheManager that reserves slots for drafts in every step, but
    for a request that fits without them only and has nobody to wait for: it would never run."""
    allocate_slots = scheduler.kv_cache_manager.allocate_slots

    @functools.wraps(allocate_slots)
    def with_lookahead(*args: Any, **kwargs: Any) -> Any:
        reserved = {**kwargs, "num_lookahead_tokens": scheduler.num_lookahead_tokens}
        blocks = allocate_slots(*args, **reserved)
        if blocks is None and not scheduler.running:
            blocks = allocate_slots(*args, **kwargs)
        return blocks

    return with_lookahead


def apply(edit: Edit) -> None:
    scheduler = edit.module.Scheduler
    host_init = scheduler.__init__

    @functools.wraps(host_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        host_init(self, *args, **kwargs)
        if self.connector is None and self.num_lookahead_tokens:
            self.kv_cache_manager.allocate_slots = reserving(self)

    edit.set(scheduler, "__init__", __init__)
