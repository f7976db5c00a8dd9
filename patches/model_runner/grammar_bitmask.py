# SPDX-License-Identifier: Apache-2.0
"""model_runner.grammar_bitmask

What: a request with a grammar no longer ends the engine when it is not alone in its batch.
Why: the host masks logits on the CPU, with vLLM's function, which names the rows to mask in a tensor.
    xgrammar's kernel for the CPU takes a list of numbers only.
How: the host calls a copy of vLLM's function, made at run time, that finds an xgrammar which takes both.
Until: xgrammar takes a tensor for logits on the CPU (0.1.32, which vLLM 0.18.0 asks for).
"""

from __future__ import annotations

import importlib
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.structured_output.utils:apply_grammar_bitmask",
    "vllm_ascend.worker.model_runner_v1:NPUModelRunner.sample_tokens",
    "vllm_ascend.worker.model_runner_v1:apply_grammar_bitmask",
)


class XgrammarForCpu:
    """xgrammar, with rows named by a tensor too."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("xgrammar"), name)

    def apply_token_bitmask_inplace(self, logits: Any, bitmask: Any, *, indices: Any = None) -> None:
        """Mask `logits` (float [rows, vocab_size]) by `bitmask` (int32 [rows, vocab_size / 32]) in the rows
        `indices`, or in all."""
        rows = None if indices is None else indices.tolist()
        importlib.import_module("xgrammar").apply_token_bitmask_inplace(logits, bitmask, indices=rows)


def apply(edit: Edit) -> None:
    vllm_function = edit.module.apply_grammar_bitmask
    copy = types.FunctionType(
        vllm_function.__code__, {**vllm_function.__globals__, "xgr": XgrammarForCpu()}, vllm_function.__name__
    )
    edit.set(edit.module, "apply_grammar_bitmask", copy, aliases=False)
