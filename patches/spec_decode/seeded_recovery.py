# SPDX-License-Identifier: Apache-2.0
"""spec_decode.seeded_recovery

What: the text of a request with a seed does not depend on whether others in its batch have drafts.
Why: where anybody has, the host draws random numbers for the recovered tokens of every request with a seed,
    also of those that have no drafts. Their next token is then drawn from another place of their sequence.
    vLLM leaves them out.
How: ``sample_recovered_tokens`` is given the generators of requests with drafts only.
Until: vllm-ascend leaves them out.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.sample.metadata:SamplingMetadata",
    "vllm_ascend.sample.rejection_sampler:rejection_sample",
    "vllm_ascend.sample.rejection_sampler:sample_recovered_tokens",
)


def apply(edit: Edit) -> None:
    host_function = edit.module.sample_recovered_tokens
    signature = inspect.signature(host_function)

    @functools.wraps(host_function)
    def sample_recovered_tokens(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        metadata, drafts = given.arguments["sampling_metadata"], given.arguments["num_draft_tokens"]
        drawing = {row: generator for row, generator in metadata.generators.items() if drafts[row] > 0}
        given.arguments["sampling_metadata"] = dataclasses.replace(metadata, generators=drawing)
        return host_function(*given.args, **given.kwargs)

    edit.set(edit.module, "sample_recovered_tokens", sample_recovered_tokens)
