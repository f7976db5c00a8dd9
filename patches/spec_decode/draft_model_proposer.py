# SPDX-License-Identifier: Apache-2.0
"""spec_decode.draft_model_proposer

What: ``vllm_ascend.spec_decode.eagle_proposer`` gains ``AscendDraftModelProposer``: vLLM's
    DraftModelProposer on Ascend's SpecDecodeBaseProposer.
Why: the host has no proposer for ``method: draft_model``.
How: a clone of vLLM's class on the other base, made at run time, registered as a virtual subclass of the
    original. vLLM's checks (equal vocabularies, equal tensor parallel sizes), its loading (the
    ``draft_model`` prefix, nothing shared with the target) come along.
Until: vllm-ascend has a draft-model proposer that is right: the one of 0.17.0rc1 and 0.18.0 is fed by
    EAGLE's input path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_specpatch.classes import make_cls

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.config.speculative:SpeculativeConfig.verify_equal_vocab_size_if_draft_model",
    "vllm.v1.spec_decode.draft_model:DraftModelProposer",
    "vllm.v1.spec_decode.utils:create_vllm_config_for_draft_model",
)


def apply(edit: Edit) -> None:
    from vllm.v1.spec_decode.draft_model import DraftModelProposer

    host = edit.module
    clone = make_cls(
        DraftModelProposer,
        name="AscendDraftModelProposer",
        bases=(host.SpecDecodeBaseProposer,),
        module=host.__name__,
    )
    DraftModelProposer.register(clone)
    edit.set(host, "AscendDraftModelProposer", clone)
