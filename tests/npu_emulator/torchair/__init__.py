# SPDX-License-Identifier: Apache-2.0
"""torchair's "reduce-overhead" mode with run_eagerly: the FX graph runs after the registered replacements."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from . import fx_summary, npu_fx_compiler
from .core import _concrete_graph

__all__ = [
    "CompilerConfig",
    "_concrete_graph",
    "fx_summary",
    "get_npu_backend",
    "npu_fx_compiler",
    "register_replacement",
]

_replacements: Any = None  # an inductor PatternMatcherPass, once something is registered


class CompilerConfig:
    def __init__(self) -> None:
        self.mode = "max-autotune"
        self.debug = types.SimpleNamespace(run_eagerly=False, aclgraph=types.SimpleNamespace())
        self.experimental_config = types.SimpleNamespace(aclgraph=types.SimpleNamespace())


def register_replacement(
    search_fn: Callable, replace_fn: Callable, example_inputs: Any, extra_check: Any = None, **options: Any
) -> None:
    global _replacements
    from torch._inductor import pattern_matcher

    _replacements = _replacements or pattern_matcher.PatternMatcherPass()
    pattern_matcher.register_replacement(
        search_fn, replace_fn, example_inputs, pattern_matcher.fwd_only, _replacements
    )


def _replace(graph_module: Any, example_inputs: Any) -> Any:
    if _replacements is not None:
        _replacements.apply(graph_module.graph)
        graph_module.recompile()
    return graph_module


def _backend(graph_module: Any, example_inputs: Any, config: CompilerConfig | None = None) -> Any:
    if config is None or config.mode != "reduce-overhead" or not config.debug.run_eagerly:
        raise RuntimeError(
            "the NPU emulator compiles only with mode='reduce-overhead' and debug.run_eagerly=True"
        )
    from torch._dynamo.backends.common import aot_autograd

    return aot_autograd(fw_compiler=_replace)(graph_module, example_inputs)


def get_npu_backend(*, compiler_config: CompilerConfig | None = None, **options: Any) -> Callable:
    return functools.partial(_backend, config=compiler_config)
