# SPDX-License-Identifier: Apache-2.0
"""The list of patches: its order is changed on purpose or not at all."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ascend_specpatch import hosts
from ascend_specpatch.patches import PATCHES
from ascend_specpatch.registry import Registry

# Stage by stage, and within a stage what others stand on first. Changed together with patches/__init__.py.
ORDER = (
    "worker.lazy_model_runner",
    "worker.equal_ranks",
    "spec_decode.abstract_proposers",
    "spec_decode.base_proposer",
    "spec_decode.eagle_proposer",
    "spec_decode.draft_model_proposer",
    "spec_decode.rejected_token_count",
    "spec_decode.next_token_ids",
    "spec_decode.first_draft_slots",
    "spec_decode.sampling_constraints",
    "spec_decode.kernels.prepare_inputs",
    "spec_decode.kernels.prepare_next_token",
    "spec_decode.kernels.copy_and_expand_inputs",
    "spec_decode.kernels.rejection_greedy",
    "spec_decode.kernels.rejection_random",
    "spec_decode.kernels.expand",
    "spec_decode.kernels.recovered_tokens",
    "spec_decode.kernels.ascend_prepare_inputs",
    "spec_decode.kernels.ascend_rejection_greedy",
    "spec_decode.kernels.ascend_rejection_greedy_one_draft",
    "spec_decode.kernels.ascend_rejection_random",
    "spec_decode.kernels.ascend_block_verify",
    "spec_decode.kernels.ascend_expand",
    "spec_decode.kernels.ascend_recovered_tokens",
    "spec_decode.ngram_at_max_length",
    "spec_decode.sampled_verification",
    "spec_decode.draft_penalties",
    "spec_decode.seeded_recovery",
    "spec_decode.skipped_requests",
    "spec_decode.allowed_tokens",
    "model_runner.drafter_selection",
    "model_runner.propose_draft_token_ids",
    "model_runner.accepted_logprobs",
    "model_runner.async_output_tokens",
    "model_runner.grammar_bitmask",
    "model_runner.allowed_tokens_rows",
    "model_runner.short_mla_prompts",
    "model_runner.captured_sizes",
    "model_runner.lora_in_graphs",
)


def test_patches_are_applied_in_this_order() -> None:
    assert tuple(patch.id for patch in Registry(PATCHES)) == ORDER


def test_the_page_lists_them_in_the_order_of_application() -> None:
    assert tuple(patch.id for patch in PATCHES) == ORDER


# Every patch, in the form of its first pair and in those of others that have a body of their own.
BODIES = sorted({(patch.id, patch.on(pair).body) for patch in PATCHES for pair in hosts.SUPPORTED})


@pytest.mark.parametrize(("patch_id", "body"), BODIES, ids=[body for _, body in BODIES])
def test_every_patch_says_what_why_how_and_until_when(patch_id: str, body: str, checkout: Path) -> None:
    path = checkout.joinpath(*body.split(".")[1:]).with_suffix(".py")
    tree = ast.parse(path.read_text())
    text = ast.get_docstring(tree) or ""
    title = text.splitlines()[0]
    # Another form says for which hosts it is.
    assert title == patch_id if body.endswith(f".patches.{patch_id}") else title.startswith(f"{patch_id}, ")
    assert re.findall(r"^(What|Why|How|Until): ", text, re.MULTILINE) == ["What", "Why", "How", "Until"]
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    names += [alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert "apply" in names
