# SPDX-License-Identifier: Apache-2.0
"""spec_decode.abstract_proposers

What: vLLM's ``SpecDecodeBaseProposer``, and with it ``EagleProposer`` and ``DraftModelProposer``, get the
    metaclass ``ABCMeta``.
Why: vLLM asks ``isinstance(drafter, EagleProposer)`` in places that must stay as they are. Ascend's proposers
    stand on another base and can only answer as virtual subclasses, which needs ``EagleProposer.register``.
How: in place and at the root of the family: every class keeps its identity, so whoever took one before has
    the right one, and ``vllm.v1.spec_decode.draft_model`` may be imported before or after. No logic changes.
Until: vLLM makes its proposers abstract classes, or vllm-ascend's proposers inherit from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_specpatch.classes import add_abc_meta

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.spec_decode.draft_model:DraftModelProposer",
    "vllm.v1.spec_decode.eagle:EagleProposer",
    "vllm.v1.spec_decode.eagle:SpecDecodeBaseProposer",
    # The isinstance check that NPUModelRunner does not override.
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._check_and_update_cudagraph_mode",
)


def apply(edit: Edit) -> None:
    edit.undo_with(add_abc_meta(edit.module.SpecDecodeBaseProposer))
