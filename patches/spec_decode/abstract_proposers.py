# SPDX-License-Identifier: Apache-2.0
"""spec_decode.abstract_proposers

What: vLLM's ``EagleProposer`` and ``DraftModelProposer`` get the metaclass ``ABCMeta``.
Why: vLLM asks ``isinstance(drafter, EagleProposer)`` in places that must stay as they are. Ascend's
    proposers stand on another base and can only answer as virtual subclasses, which needs
    ``EagleProposer.register``.
How: CPython does not let an existing class change its metaclass, so equal classes with the other metaclass
    take their places, at the
    root of the family: ``vllm.v1.spec_decode.draft_model`` then defines its class with that metaclass by
    itself, and where it was imported before, its class is replaced too. No logic changes.
Until: vLLM makes its proposers abstract classes, or vllm-ascend's proposers inherit from them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ascend_specpatch.classes import add_abc_meta, make_cls

if TYPE_CHECKING:
    from ascend_specpatch.edits import Edit


def apply(edit: Edit) -> None:
    eagle = edit.module
    base = add_abc_meta(eagle.SpecDecodeBaseProposer)
    edit.set(eagle, "SpecDecodeBaseProposer", base)
    edit.set(eagle, "EagleProposer", make_cls(eagle.EagleProposer, bases=(base,)))
    draft_model: Any = sys.modules.get("vllm.v1.spec_decode.draft_model")
    if hasattr(draft_model, "DraftModelProposer"):  # and is not just being imported
        edit.set(draft_model, "DraftModelProposer", make_cls(draft_model.DraftModelProposer, bases=(base,)))
