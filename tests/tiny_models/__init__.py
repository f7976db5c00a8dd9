# SPDX-License-Identifier: Apache-2.0
"""Tiny random models for the tests and the demo, written on demand.

``python -m tests.tiny_models DIR [NAME ...]`` writes them all, or the named ones and what they are
made from. Each costs a fraction of a second and at most 10 MB; weights are float32 and depend on the
recipe alone. A directory whose stamp matches the recipes is left as it is, and then nothing heavy is
imported.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STAMP = ".stamp"  # in each model's directory: what it was made from


@dataclass(frozen=True)
class Recipe:
    """How one model is written: ``module.maker(root, out)``, after the models it is made from."""

    module: str
    maker: str
    needs: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)  # given to a maker that is a class

    def write(self, root: Path, out: Path) -> None:
        maker = getattr(importlib.import_module(f".{self.module}", __name__), self.maker)
        if isinstance(maker, type):
            maker = maker(**self.options)
        maker(root, out)


def _reshaped(source: str, **options: Any) -> Recipe:
    return Recipe("reshaped", "Reshape", needs=(source,), options={"source": source, **options})


def _adapted(source: str, name: str, **options: Any) -> dict[str, Recipe]:
    """A LoRA adapter, and its target with the adapter merged."""
    return {
        name: Recipe("adapters", "Adapter", needs=(source,), options={"source": source, **options}),
        f"{name}_merged": Recipe(
            "adapters", "Merged", needs=(source, name), options={"source": source, "adapter": name}
        ),
    }


LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ENDS = ("embed_tokens", "lm_head")  # what drafters share with their target

_ALL: dict[str, Any] = {"hidden": True, "kv_heads": True, "head_dim": True, "extra_layers": 1}
_HI_DSV3 = {"attention": 0.05, "mlp": 0.04, "hidden_share": 0.1}  # more drafts are accepted
_HI_MIMO = {"attention": 0.03, "mlp": 0.02, "hidden_share": 0.1}

RECIPES: dict[str, Recipe] = {
    "llama": Recipe("dense", "llama"),
    "qwen3": Recipe("dense", "qwen3"),
    "llama_draft": Recipe("dense", "llama_draft"),
    "llama8": Recipe("dense", "llama8"),
    "cyc": Recipe("dense", "cyc"),
    "pred": Recipe("dense", "pred"),
    "pred8": Recipe("dense", "pred8"),
    **_adapted("pred", "pred_lora", modules=LINEAR, seed=31),
    **_adapted("pred", "pred_lora_ends", modules=(*LINEAR, *ENDS), seed=32),
    "pred_draft": Recipe("dense", "pred_draft", needs=("pred",)),
    "pred_pard": Recipe("dense", "pred_pard", needs=("pred",)),
    "other_vocab": Recipe("dense", "other_vocab"),
    "mrope": Recipe("dense", "mrope"),
    "llama_wide": _reshaped("llama", **_ALL),
    "llama_hid": _reshaped("llama", hidden=True),
    "llama_kv": _reshaped("llama", kv_heads=True),
    "llama_hd": _reshaped("llama", head_dim=True),
    "llama_l": _reshaped("llama", extra_layers=1),
    "pred_draft_wide": _reshaped("pred_draft", **_ALL),
    "eagle_llama": Recipe("eagle_heads", "eagle_llama"),
    "eagle3_llama8": Recipe("eagle_heads", "eagle3_llama8"),
    "pred_eagle": Recipe("eagle_heads", "pred_eagle"),
    "pred_stateless_eagle": Recipe("eagle_heads", "pred_stateless_eagle"),
    "pred8_eagle3": Recipe("eagle_heads", "pred8_eagle3", needs=("pred8",)),
    "dice": Recipe("small_vocab", "dice"),
    "dice_draft": Recipe("small_vocab", "dice_draft", needs=("dice",)),
    "dice_eagle": Recipe("small_vocab", "dice_eagle"),
    "pred8_headless_eagle3": Recipe("eagle_heads", "pred8_headless_eagle3", needs=("pred8",)),
    "pred8_parallel_eagle3": Recipe("eagle_heads", "pred8_parallel_eagle3", needs=("pred8",)),
    "mimo": Recipe("mtp", "MiMo"),
    "mimo_hi": Recipe("mtp", "MiMo", options=_HI_MIMO),
    "dsv3": Recipe("mtp", "DeepSeekV3"),
    "dsv3_hi": Recipe("mtp", "DeepSeekV3", options=_HI_DSV3),
    "dsv3_headless": Recipe("mtp", "DeepSeekV3", options={**_HI_DSV3, "own_head": False}),
    "dsv3_other_head": Recipe("mtp", "DeepSeekV3", options={**_HI_DSV3, "head_noise": 0.1}),
    "dsv3_alone": Recipe("mtp", "WithoutMtp", needs=("dsv3_hi",), options={"source": "dsv3_hi"}),
    "dsv32_hi": Recipe("mtp", "DeepSeekV32", needs=("dsv3_hi",), options={"source": "dsv3_hi"}),
}


def by_release(directory: Path) -> Path:
    """The folder of ``directory`` for models of the installed transformers: environments that share a
    directory do not write theirs over each other's."""
    return directory / f"transformers-{importlib.metadata.version('transformers')}"


def write(root: Path, names: Iterable[str] | None = None) -> list[str]:
    """Make sure that the named models (all, if None) are in ``root``; returns those written now."""
    wanted = _with_needs(RECIPES if names is None else names)
    stamp = _stamp()
    stale = [name for name in wanted if not _is_current(root / name, stamp)]
    for name in stale:
        _write_whole(root, name, stamp)
    return stale


def _with_needs(names: Iterable[str]) -> list[str]:
    order: dict[str, None] = {}
    for name in names:
        if name not in RECIPES:
            raise KeyError(f"no tiny model is called {name!r}; there are: {', '.join(RECIPES)}")
        order |= dict.fromkeys(_with_needs(RECIPES[name].needs))
        order[name] = None
    return list(order)


def _is_current(directory: Path, stamp: str) -> bool:
    path = directory / STAMP
    return path.exists() and path.read_text() == stamp


def _write_whole(root: Path, name: str, stamp: str) -> None:
    """Write beside the final place and rename, so that a killed run leaves no half model."""
    root.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=root))
    try:
        RECIPES[name].write(root, scratch)
        (scratch / STAMP).write_text(stamp)
        scratch.chmod(0o755)  # mkdtemp's is private
        shutil.rmtree(root / name, ignore_errors=True)
        os.replace(scratch, root / name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _stamp() -> str:
    """A digest of everything the weights depend on."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    for library in ("torch", "transformers"):
        digest.update(importlib.metadata.version(library).encode())
    return digest.hexdigest()
