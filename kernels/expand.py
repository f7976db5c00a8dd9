# SPDX-License-Identifier: Apache-2.0
"""From one value a request to one value a draft token.

Stands for the ``expand_kernel`` of vLLM and of vllm-ascend; :func:`expand_sampling` does in one launch what
they do in up to three.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from vllm.triton_utils import tl, triton

from ._dispatch import MAX_SPEC_LEN, programs, use_triton


@triton.jit  # type: ignore[untyped-decorator]
def _one_request(  # type: ignore[no-untyped-def]
    output_ptr,
    input_ptr,
    second_output_ptr,
    second_input_ptr,
    third_output_ptr,
    third_input_ptr,
    cu_num_tokens_ptr,
    replace_from,
    replace_to,
    request,
    before,
    MAX_SPEC_LEN: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """Gives where the request ends. `before`: where the one before it does; if not STRIDE, as loaded."""
    # Loaded as vectors of one, all of them before the first is looked at: on an NPU a scalar load stalls the
    # core, and these can be under way together.
    one = tl.arange(0, 1)
    end = tl.load(cu_num_tokens_ptr + request + one)
    if output_ptr is not None:
        value = tl.load(input_ptr + request + one)
    if second_output_ptr is not None:
        second = tl.load(second_input_ptr + request + one)
    if third_output_ptr is not None:
        third = tl.load(third_input_ptr + request + one)
    start = before if STRIDE else tl.where(request > 0, tl.max(before, 0), 0)
    end = tl.max(end, 0)
    position = tl.arange(0, MAX_SPEC_LEN)
    inside = position < end - start
    if output_ptr is not None:
        value = tl.max(value, 0)
        value = tl.where(value == replace_from, replace_to, value)
        tl.store(output_ptr + start + position, value, mask=inside)
    if second_output_ptr is not None:
        tl.store(second_output_ptr + start + position, tl.max(second, 0), mask=inside)
    if third_output_ptr is not None:
        tl.store(third_output_ptr + start + position, tl.max(third, 0), mask=inside)
    return end


@triton.jit(do_not_specialize=["replace_from", "replace_to", "num_reqs"])  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    output_ptr,
    input_ptr,
    second_output_ptr,
    second_input_ptr,
    third_output_ptr,
    third_input_ptr,
    cu_num_tokens_ptr,
    replace_from,
    replace_to,
    num_reqs,
    MAX_SPEC_LEN: tl.constexpr,
    STRIDE: tl.constexpr,
):
    # Neighbours, so that one begins where the last one ended.
    requests = tl.cdiv(num_reqs, tl.num_programs(0)) if STRIDE else 1
    request = tl.program_id(0) * requests
    if STRIDE:
        request = tl.minimum(request, num_reqs)
    # A load before the first element is a fault on the NPU even where its mask is false.
    before = tl.load(cu_num_tokens_ptr + tl.maximum(request - 1, 0) + tl.arange(0, 1))
    if STRIDE:
        before = tl.where(request > 0, tl.max(before, 0), 0)
        last = tl.minimum(request + requests, num_reqs)
        while request < last:  # not range(): see rejection_greedy
            before = _one_request(
                output_ptr, input_ptr, second_output_ptr, second_input_ptr, third_output_ptr, third_input_ptr,
                cu_num_tokens_ptr, replace_from, replace_to, request, before, MAX_SPEC_LEN, STRIDE,
            )  # fmt: skip
            request += 1
    else:
        _one_request(
            output_ptr, input_ptr, second_output_ptr, second_input_ptr, third_output_ptr, third_input_ptr,
            cu_num_tokens_ptr, replace_from, replace_to, request, before, MAX_SPEC_LEN, STRIDE,
        )  # fmt: skip


def reference(
    output: torch.Tensor,
    values: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    replace_from: int = 0,
    replace_to: int = 0,
) -> None:
    """The same in torch, on the device of its arguments, without a copy to the host. See :func:`expand`."""
    if output.shape[0] == 0 or values.shape[0] == 0:
        return
    token = torch.arange(output.shape[0], device=output.device)
    end = cu_num_tokens.long()
    request = torch.searchsorted(end, token, right=True)
    known = request < values.shape[0]
    replaced = torch.where(values == replace_from, replace_to, values).to(output.dtype)
    output.copy_(torch.where(known, replaced[torch.where(known, request, 0)], output))


def _launch(
    pairs: list[tuple[torch.Tensor | None, torch.Tensor | None]],
    cu_num_tokens: torch.Tensor,
    replace_from: int,
    replace_to: int,
) -> None:
    num_reqs = cu_num_tokens.shape[0]
    if not use_triton():
        for i, (output, values) in enumerate(pairs):
            if output is not None and values is not None:
                reference(output, values, cu_num_tokens, *((replace_from, replace_to) if i == 0 else ()))
    elif num_reqs > 0:
        (output, values), (second_output, second), (third_output, third) = pairs
        number = programs(num_reqs)
        _kernel[(number,)](
            output,
            values,
            second_output,
            second,
            third_output,
            third,
            cu_num_tokens,
            replace_from,
            replace_to,
            num_reqs,
            MAX_SPEC_LEN=MAX_SPEC_LEN,
            STRIDE=number < num_reqs,
        )


def expand(
    output: torch.Tensor,
    values: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    replace_from: int = 0,
    replace_to: int = 0,
) -> None:
    """Write the value of each request to all its tokens.

    Args:
        output: [num_tokens], written to.
        values: [num_reqs], of the same type.
        cu_num_tokens: int32 [num_reqs], inclusive cumulative sum of the number of tokens of each request, at
            most 128 a request.
        replace_from, replace_to: a value equal to the first is written as the second.
    """
    _launch([(output, values), (None, None), (None, None)], cu_num_tokens, replace_from, replace_to)


def expand_sampling(
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    cu_num_tokens: torch.Tensor,
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Temperature, top-k and top-p of each token, in one launch.

    Args:
        temperature: float [num_reqs]; one equal to `replace_from` becomes `replace_to`.
        top_k: int [num_reqs], or None.
        top_p: float [num_reqs], or None.
        cu_num_tokens: int32 [num_reqs], inclusive cumulative sum of the number of tokens of each request.
        num_tokens: the last of these.

    Returns:
        [num_tokens] each, None where there was none.
    """
    inputs = (temperature, top_k, top_p)
    outputs = [None if values is None else values.new_empty(num_tokens) for values in inputs]
    _launch(list(zip(outputs, inputs, strict=True)), cu_num_tokens, replace_from, replace_to)
    return outputs[0], outputs[1], outputs[2]


def expand_kernel(
    grid: tuple[int, ...],
    output_ptr: torch.Tensor,
    input_ptr: torch.Tensor,
    cu_num_tokens_ptr: torch.Tensor,
    replace_from: int,
    replace_to: int,
    *options: Any,
    **more_options: Any,
) -> None:
    """In place of vLLM's and of vllm-ascend's."""
    expand(output_ptr, input_ptr, cu_num_tokens_ptr, replace_from, replace_to)


def compile_cases() -> Iterator[tuple[str, Any, dict[str, str], dict[str, Any]]]:
    """What the launcher can have compiled for an NPU: name, kernel, signature, constants."""
    types = {"cu_num_tokens_ptr": "*i32", "replace_from": "i32", "replace_to": "i32", "num_reqs": "i32"}
    inputs = ("output_ptr", "input_ptr")
    second = ("second_output_ptr", "second_input_ptr")
    third = ("third_output_ptr", "third_input_ptr")
    for strides in (False, True):
        size = {"MAX_SPEC_LEN": MAX_SPEC_LEN, "STRIDE": strides}
        many = ", many" * strides
        for kind in ("*fp32", "*i32"):
            one = {**types, **dict.fromkeys(inputs, kind)}
            yield f"one of {kind[1:]}{many}", _kernel, one, {**size, **dict.fromkeys(second + third)}
        one = {**types, **dict.fromkeys(inputs, "*fp32")}
        top_k, top_p = dict.fromkeys(second, "*i32"), dict.fromkeys(third, "*fp32")
        yield f"with top k{many}", _kernel, {**one, **top_k}, {**size, **dict.fromkeys(third)}
        yield f"with top p{many}", _kernel, {**one, **top_p}, {**size, **dict.fromkeys(second)}
        yield f"with both{many}", _kernel, {**one, **top_k, **top_p}, size
