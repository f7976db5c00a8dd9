# SPDX-License-Identifier: Apache-2.0
"""Language-model heads of MTP layers.

vLLM puts the target's head into every MTP layer (``shared_head.head``), because a checkpoint may lack the
layer's own and then nobody has written it. One that the checkpoint has, and that is not the target's, is what
the layer was trained with.
"""

from __future__ import annotations

from typing import Any

import torch

from .host import HostFunctions


class OwnHeads(HostFunctions):  # type: ignore[misc]
    """Loading of Ascend's SpecDecodeBaseProposer."""

    _loaded: frozenset[str] = frozenset()
    """Names of the parameters that the checkpoint of the drafting model had."""

    def _get_model(self) -> Any:
        from vllm.model_executor.model_loader import get_model_architecture

        head_class: Any = get_model_architecture(self.speculative_config.draft_model_config)[0]
        defined, load_weights = vars(head_class).get("load_weights"), head_class.load_weights

        def noting(model: Any, weights: Any) -> Any:
            names = load_weights(model, weights)
            self._loaded |= frozenset(names or ())
            return names

        head_class.load_weights = noting
        try:
            return super()._get_model()
        finally:
            if defined is None:
                del head_class.load_weights
            else:
                head_class.load_weights = defined

    def _own_heads(self) -> list[tuple[Any, Any]]:
        """Where a head is that the checkpoint has, and the head."""
        return [
            (module, module.head)
            for name, module in self.model.named_modules()
            if name.endswith(".shared_head") and f"{name}.head.weight" in self._loaded
        ]


def give_back(own: list[tuple[Any, Any]]) -> None:
    """Undo the sharing of heads that differ from what was put in their place."""
    for holder, head in own:
        mine, targets = (getattr(module, "weight", None) for module in (head, holder.head))
        if not isinstance(mine, torch.Tensor) or not isinstance(targets, torch.Tensor):
            holder.head = head  # quantized: not comparable
        elif not torch.equal(mine.cpu(), targets.cpu()):
            holder.head = head
