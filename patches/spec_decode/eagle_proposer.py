# SPDX-License-Identifier: Apache-2.0
"""spec_decode.eagle_proposer

What: ``AscendEagleProposer`` (eagle, eagle3, mtp) becomes vLLM's EagleProposer on Ascend's
    SpecDecodeBaseProposer.
Why: the host's class is both the base of all drafting and EAGLE itself, so nothing that is not EAGLE can
    stand beside it.
How: a clone of vLLM's class on the other base, made at run time, registered as a virtual subclass of the
    original.
Until: vllm-ascend separates the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_specpatch.classes import make_cls

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit

LEANS_ON: tuple[str, ...] = (
    "vllm.v1.spec_decode.eagle:EagleProposer",
    "vllm_ascend.spec_decode.eagle_proposer:AscendEagleProposer",
)


def apply(edit: Edit) -> None:
    from vllm.v1.spec_decode.eagle import EagleProposer

    host = edit.module
    clone = make_cls(
        EagleProposer, name="AscendEagleProposer", bases=(host.SpecDecodeBaseProposer,), module=host.__name__
    )
    EagleProposer.register(clone)
    edit.set(host, "AscendEagleProposer", clone)
