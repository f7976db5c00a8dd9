# SPDX-License-Identifier: Apache-2.0
"""model_runner.captured_sizes

What: full graphs are captured with any number of drafts.
Why: where requests verify drafts, vLLM rounds the sizes that are captured to multiples of ``k + 1``.
    vllm-ascend 0.17.0rc1 makes room for what a graph's attention updates by the sizes from before, so the
    engine ends at its start unless both are the same, as with one draft or three.
How: when the host has made room, it is made for the sizes that are captured too.
Until: vllm-ascend makes room for the rounded sizes (0.18.0).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._check_and_update_cudagraph_mode",
    "vllm_ascend.compilation.acl_graph:GraphParams",
    "vllm_ascend.compilation.acl_graph:get_draft_graph_params",
    "vllm_ascend.compilation.acl_graph:get_graph_params",
    "vllm_ascend.compilation.acl_graph:set_graph_params",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner._check_and_update_cudagraph_mode",
)


def apply(edit: Edit) -> None:
    runner = edit.module.NPUModelRunner
    host_function = runner._check_and_update_cudagraph_mode

    @functools.wraps(host_function)
    def _check_and_update_cudagraph_mode(self: Any, *args: Any, **kwargs: Any) -> None:
        from vllm_ascend.compilation.acl_graph import get_draft_graph_params, get_graph_params

        host_function(self, *args, **kwargs)
        for params in (get_graph_params(), get_draft_graph_params()):
            if params is not None:
                make_room(params, self.compilation_config.cudagraph_capture_sizes)

    edit.set(runner, "_check_and_update_cudagraph_mode", _check_and_update_cudagraph_mode)


def make_room(params: Any, sizes: list[int]) -> None:
    """Entries for graphs of these sizes in a GraphParams of the host, as it makes them."""
    for size in sizes:
        params.events.setdefault(size, [])
        params.workspaces.setdefault(size, None)
        params.handles.setdefault(size, [])
        params.attn_params.setdefault(size, [])
