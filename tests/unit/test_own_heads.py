# SPDX-License-Identifier: Apache-2.0
"""Which language-model head an MTP layer drafts with. Needs no host."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ascend_specpatch.patches.spec_decode.drafting.own_heads import OwnHeads, give_back  # noqa: E402

TARGET = 2.0


def _head(value: float) -> Any:
    head = torch.nn.Linear(2, 3, bias=False)
    torch.nn.init.constant_(head.weight, value)
    return head


class _Mtp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared_head = torch.nn.Module()
        self.shared_head.head = _head(-1)  # what nobody wrote

    def load_weights(self, weights: dict[str, float]) -> set[str]:
        for value in weights.values():
            torch.nn.init.constant_(self.shared_head.head.weight, value)
        return set(weights)


class _Inherits(_Mtp):
    pass


class _Host:
    def _get_model(self) -> Any:
        model = torch.nn.Module()
        model.layer = self.speculative_config.draft_model_config()  # type: ignore[attr-defined]
        names = {f"layer.{name}": value for name, value in self.checkpoint.items()}  # type: ignore[attr-defined]
        model.layer.load_weights(names)
        return model


class _Proposer(OwnHeads, _Host):
    def __init__(self, head_class: type, checkpoint: dict[str, float]) -> None:
        self.speculative_config = SimpleNamespace(draft_model_config=head_class)
        self.checkpoint = checkpoint


@pytest.mark.parametrize("head_class", [_Mtp, _Inherits])
@pytest.mark.parametrize(
    ("checkpoint", "drafts_with"), [({}, TARGET), ({"shared_head.head.weight": 5.0}, 5.0)]
)
def test_a_layer_keeps_the_head_that_its_checkpoint_has(
    monkeypatch: pytest.MonkeyPatch, head_class: type, checkpoint: dict[str, float], drafts_with: float
) -> None:
    loader = SimpleNamespace(get_model_architecture=lambda config: (config, "Mtp"))
    for name in ("vllm", "vllm.model_executor", "vllm.model_executor.model_loader"):
        monkeypatch.setitem(sys.modules, name, loader)
    before = {name: vars(name).get("load_weights") for name in (_Mtp, _Inherits)}
    proposer = _Proposer(head_class, checkpoint)
    proposer.model = proposer._get_model()
    assert {name: vars(name).get("load_weights") for name in (_Mtp, _Inherits)} == before

    own, layer = proposer._own_heads(), proposer.model.layer
    layer.shared_head.head = _head(TARGET)  # what vLLM does whatever the checkpoint has
    give_back(own)
    assert layer.shared_head.head.weight.eq(drafts_with).all()


def test_an_equal_head_stays_shared() -> None:
    """That is one copy of the largest matrix less."""
    shared = _head(TARGET)
    holder = SimpleNamespace(head=shared)
    give_back([(holder, _head(TARGET))])
    assert holder.head is shared
