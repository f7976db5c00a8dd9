# SPDX-License-Identifier: Apache-2.0
"""worker.equal_ranks

What: an engine does not start where its ranks are patched differently.
Why: each rank drafts and verifies by itself. A rank of another patch set, on a Ray node with other
    environment variables or another release, would draft other tokens, or wait for a collective operation
    that the others never enter.
How: the engine core asks every rank through ``collective_rpc``, after all have loaded their models and before
    they run them for the first time (``EngineCore._initialize_kv_caches``), so under every executor. What
    it sends travels by value: a rank without ascend-specpatch answers as well. Engines of a data parallel
    group do not ask each other: one without the patch would leave the others waiting.
Until: never; it is about this distribution alone.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ascend_specpatch import ranks

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    # Who builds the executor, and then calls what is wrapped.
    "vllm.v1.engine.core:EngineCore.__init__",
    "vllm.v1.engine.core:EngineCore._initialize_kv_caches",
    # How a function reaches the ranks, in whose order the answers come.
    "vllm.v1.executor.multiproc_executor:MultiprocExecutor.collective_rpc",
    "vllm.v1.executor.ray_executor:RayDistributedExecutor.collective_rpc",
    "vllm.v1.executor.uniproc_executor:UniProcExecutor.collective_rpc",
    "vllm.v1.serial_utils:run_method",
)

# Every rank is idle then. What takes longer is a rank that is gone.
_ANSWER_S = 120.0


def check_ranks(executor: Any) -> None:
    """Ask all ranks of an executor how they are patched.

    Raises:
        ranks.UnequalRanks: they are not patched alike; the executor is shut down, because an engine core that
            fails waits for the end of its workers.
    """
    describe = ranks.question()
    answers = executor.collective_rpc(describe, timeout=_ANSWER_S)
    try:
        ranks.check(answers, describe(None))
    except ranks.UnequalRanks:
        executor.shutdown()
        raise


def apply(edit: Edit) -> None:
    core = edit.module.EngineCore
    host_initialize = core._initialize_kv_caches

    @functools.wraps(host_initialize)
    def _initialize_kv_caches(self: Any, *args: Any, **kwargs: Any) -> Any:
        check_ranks(self.model_executor)
        return host_initialize(self, *args, **kwargs)

    edit.set(core, "_initialize_kv_caches", _initialize_kv_caches)
