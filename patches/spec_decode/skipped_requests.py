# SPDX-License-Identifier: Apache-2.0
"""spec_decode.skipped_requests

What: a request that is left out of a step under asynchronous scheduling comes back without drafts.
Why: vLLM 0.16.0 schedules -1 for drafts that are on the device only, and finds them by the request's row in
    the step before. A request that had no row there, because its optimistic length had reached
    ``max_model_len`` or the step was full, is run with -1 as input, on which the engine ends.
How: ``_update_after_schedule`` takes the placeholders from running requests that it did not schedule.
Until: vLLM does.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.core.sched.async_scheduler:AsyncScheduler._update_after_schedule",
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._prepare_input_ids",
)


def apply(edit: Edit) -> None:
    scheduler = edit.module.AsyncScheduler
    vllm_function = scheduler._update_after_schedule

    @functools.wraps(vllm_function)
    def _update_after_schedule(self: Any, scheduler_output: Any) -> None:
        vllm_function(self, scheduler_output)
        for request in self.running:
            if request.spec_token_ids and request.request_id not in scheduler_output.num_scheduled_tokens:
                request.spec_token_ids = []

    edit.set(scheduler, "_update_after_schedule", _update_after_schedule)
