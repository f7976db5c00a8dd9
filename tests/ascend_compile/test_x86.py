# SPDX-License-Identifier: Apache-2.0
"""The kernels' linalg IR, run on this machine, gives what their algorithms give, here written as loops."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from . import x86
from .bad_kernels import BELOW_ZERO, BEYOND_THE_END
from .cases import kinds
from .conftest import Compiled
from .toolchain import Case, lower

pytestmark = pytest.mark.skipif(
    bool(x86.missing()), reason=f"not run on x86: {x86.missing()} missing (Debian: mlir-19-tools llvm-19 gcc)"
)

# What is given to a kernel, and what must be in its outputs afterwards.
Batch = tuple[dict[str, Any], dict[str, Any]]


def i32(values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, np.int32)


def ends(lengths: list[int]) -> np.ndarray[Any, Any]:
    return i32(np.cumsum(lengths))


def lengths_of(rng: random.Random, most: int) -> list[int]:
    return [rng.randint(0, most) for _ in range(rng.choice([1, 2, 7, 8, 9, 31]))]


def prepare_inputs_padded(rng: random.Random, case: Case) -> Batch:
    drafted = lengths_of(rng, 3)
    rows = [d + 1 for d in drafted]
    valid = [rng.randint(0, d + 1) for d in drafted]
    rejected = [d + 1 - max(v, 1) if d else 0 for d, v in zip(drafted, valid, strict=True)]
    start = [0, *np.cumsum(rows)]
    empty = i32([-7] * len(drafted))
    given = {
        "cu_num_draft_tokens_ptr": ends(drafted),
        "valid_sampled_tokens_count_ptr": i32(valid),
        "query_start_loc_ptr": i32(start),
        "token_indices_to_sample_ptr": empty,
        "num_rejected_tokens_ptr": empty,
        "num_reqs": len(drafted),
        "pieces": 1 - (1 - len(drafted)) // case.constants["BLOCK_SIZE"],
    }
    return given, {
        "num_rejected_tokens_ptr": rejected,
        "token_indices_to_sample_ptr": [end - 1 - r for end, r in zip(start[1:], rejected, strict=True)],
    }


def prepare_next_token_padded(rng: random.Random, case: Case) -> Batch:
    vocab = case.constants.get("vocab_size", 9)
    width = case.constants.get("num_sampled_tokens", rng.choice([1, 2, 4]))
    drafted = lengths_of(rng, width - 1)
    requests = len(drafted)
    sampled = [[rng.choice([-1, vocab, *range(vocab)]) for _ in range(width)] for _ in drafted]
    discarded = [rng.random() < 0.3 for _ in drafted]
    valid = [
        [token for token in row if 0 <= token < vocab and not gone]
        for row, gone in zip(sampled, discarded, strict=True)
    ]
    count = [len(row) for row in valid]
    start = [0, *np.cumsum([d + 1 for d in drafted])]
    rejected = [d + 1 - max(c, 1) if d else 0 for d, c in zip(drafted, count, strict=True)]
    empty = i32([-7] * requests)
    given = {
        "sampled_token_ids_ptr": i32(sampled),
        "discard_request_mask_ptr": np.array(discarded, np.int8),
        "backup_next_token_ids_ptr": i32(range(100, 100 + requests)),
        "next_token_ids_ptr": empty,
        "valid_sampled_tokens_count_ptr": empty,
        "cu_num_draft_tokens_ptr": ends(drafted),
        "query_start_loc_ptr": i32(start),
        "token_indices_to_sample_ptr": empty,
        "num_rejected_tokens_ptr": empty,
        "vocab_size": vocab,
        "num_sampled_tokens": width,
        "num_reqs": requests,
        "pieces": 1 - (1 - requests) // case.constants["BLOCK_SIZE"],
        "stride": width,
    }
    return given, {
        "next_token_ids_ptr": [row[-1] if row else 100 + request for request, row in enumerate(valid)],
        "valid_sampled_tokens_count_ptr": count,
        "num_rejected_tokens_ptr": rejected,
        "token_indices_to_sample_ptr": [end - 1 - r for end, r in zip(start[1:], rejected, strict=True)],
    }


def copy_and_expand_inputs(rng: random.Random, case: Case) -> Batch:
    shift, slots = int(case.constants["SHIFT"]), case.constants.get("num_slots", rng.randint(1, 3))
    lengths = [rng.randint(1, rng.choice([4, 70])) for _ in range(rng.choice([1, 3, 9]))]
    start = [0, *np.cumsum(lengths)]
    requests, tokens = len(lengths), int(start[-1])
    last = [int(s) + rng.randint(0, n - 1) for s, n in zip(start, lengths, strict=False)]
    target = list(range(1000, 1000 + tokens))
    positions = [int(p) for n in lengths for p in rng.randint(0, 50) + np.arange(n)]
    rows = tokens + requests * (slots - shift)
    ids, where, rejected, masked = [[-7] * rows for _ in range(4)]
    new, mapping = [-7] * (requests * slots), [-7] * tokens
    row = 0
    for request, (first, end, behind) in enumerate(zip(start[:-1], last, start[1:], strict=True)):
        own = target[first + shift : end + 1]
        line = [(token, False, False) for token in own]
        new[request * slots : (request + 1) * slots] = range(row + len(own), row + len(own) + slots)
        line += [(500 + request, False, False), *[(-3, False, True)] * (slots - 1)]
        line += [(-4, True, False)] * (behind - end - 1)
        if shift:
            mapping[first:behind] = range(row, row + behind - first)
        for column, (token, is_rejected, is_masked) in enumerate(line):
            ids[row], rejected[row], masked[row] = token, is_rejected, is_masked
            where[row] = 0 if is_rejected else positions[first] + column
            row += 1
    given = {
        "target_token_ids_ptr": i32(target),
        "target_positions_ptr": np.array(positions, np.int64),
        "next_token_ids_ptr": i32(range(500, 500 + requests)),
        "out_input_ids_ptr": i32([-7] * rows),
        "out_positions_ptr": np.full(rows, -7, np.int64),
        "out_is_rejected_token_mask_ptr": np.full(rows, -7, np.int8),
        "out_is_masked_token_mask_ptr": np.full(rows, -7, np.int8),
        "out_new_token_indices_ptr": i32([-7] * requests * slots),
        "out_hidden_state_mapping_ptr": i32([-7] * tokens),
        "query_start_loc_ptr": i32(start),
        "query_end_loc_ptr": i32(last),
        "padding_token_id": -4,
        "parallel_drafting_token_id": -3,
        "total_input_tokens": tokens,
        "num_reqs": requests,
        "pieces": requests,
        "num_slots": slots,
    }
    return given, {
        "out_input_ids_ptr": ids,
        "out_positions_ptr": where,
        "out_is_rejected_token_mask_ptr": rejected,
        "out_is_masked_token_mask_ptr": masked,
        "out_new_token_indices_ptr": new,
        "out_hidden_state_mapping_ptr": mapping,
    }


def rejection_greedy(rng: random.Random, case: Case) -> Batch:
    most = rng.choice([1, 3, 7]) if case.constants.get("cu_num_draft_tokens_ptr", 0) is not None else 1
    lengths = lengths_of(rng, most) if most > 1 or "cu_num_draft_tokens_ptr" in case.signature else [1] * 9
    draft = [rng.choice([5, 6, -1]) for _ in range(sum(lengths))]
    target = [rng.choice([5, 6]) for _ in draft]
    bonus = [100 + request for request in range(len(lengths))]
    greedy = [rng.random() < 0.7 for _ in lengths]
    before = np.full((len(lengths), most + 1), -1, np.int32)
    after = before.copy()
    for request, (end, length) in enumerate(zip(np.cumsum(lengths), lengths, strict=True)):
        if "is_greedy_ptr" in case.signature and not greedy[request]:
            continue
        row = range(end - length, end)
        right = next((at for at, token in enumerate(row) if draft[token] != target[token]), length)
        tokens = [target[token] for token in row][: right + 1]
        after[request, : right + 1] = tokens if right < length else [*tokens, bonus[request]]
    given = {
        "output_token_ids_ptr": before,
        "cu_num_draft_tokens_ptr": ends(lengths),
        "draft_token_ids_ptr": i32(draft),
        "target_argmax_ptr": np.array(target, np.int64),
        "bonus_token_ids_ptr": i32(bonus),
        "is_greedy_ptr": np.array(greedy, np.int8),
        "num_reqs": len(lengths),
        "pieces": len(lengths),
        "max_spec_len": most,
    }
    return given, {"output_token_ids_ptr": after}


def _random(rng: random.Random, case: Case, verify: Callable[[list[float], list[float]], int]) -> Batch:
    """`verify` gives how many drafts are accepted, from their ratios target / draft and uniform numbers; a
    ratio below 0 is of a token that cannot be accepted."""
    most, vocab = (
        case.constants.get("max_spec_len", rng.choice([1, 3, 7])),
        case.constants.get("vocab_size", 11),
    )
    lengths = lengths_of(rng, most)
    tokens = sum(lengths)
    draft = [rng.choice([-1, vocab] if rng.random() < 0.2 else range(vocab)) for _ in range(tokens)]
    # Small powers of two: no product or quotient is rounded.
    draft_probs = np.array([[rng.choice([0, 0.25, 0.5]) for _ in range(vocab)] for _ in draft], np.float32)
    target_probs = np.array(
        [[rng.choice([0, 0.125, 0.5, 1]) for _ in range(vocab)] for _ in draft], np.float32
    )
    uniform = np.array([rng.choice([0.25, 0.5, 0.75]) for _ in draft], np.float32)
    recovered = [200 + token for token in range(tokens)]
    bonus = [100 + request for request in range(len(lengths))]
    greedy = [rng.random() < 0.3 for _ in lengths]
    before = np.full((len(lengths), most + 1), -1, np.int32)
    after = before.copy()
    for request, (end, length) in enumerate(zip(np.cumsum(lengths), lengths, strict=True)):
        if "is_greedy_ptr" in case.signature and greedy[request]:
            continue
        ratios = []
        for token in range(end - length, end):
            known = 0 <= draft[token] < vocab
            below = draft_probs[token, draft[token]] if known and "draft_probs_ptr" in case.signature else 1.0
            ratios.append(float(target_probs[token, draft[token]] / below) if known and below > 0 else -1.0)
        start = end - length
        accepted = verify(ratios, [float(u) for u in uniform[start:end]])
        after[request, :accepted] = draft[start : start + accepted]
        after[request, accepted] = bonus[request] if accepted == length else recovered[start + accepted]
    given = {
        "output_token_ids_ptr": before,
        "cu_num_draft_tokens_ptr": ends(lengths),
        "draft_token_ids_ptr": i32(draft),
        "draft_probs_ptr": draft_probs,
        "target_probs_ptr": target_probs,
        "bonus_token_ids_ptr": i32(bonus),
        "recovered_token_ids_ptr": i32(recovered),
        "uniform_probs_ptr": uniform,
        "is_greedy_ptr": np.array(greedy, np.int8),
        "num_reqs": len(lengths),
        "pieces": len(lengths),
        "max_spec_len": most,
        "vocab_size": vocab,
    }
    return given, {"output_token_ids_ptr": after}


def rejection_random(rng: random.Random, case: Case) -> Batch:
    def verify(ratios: list[float], uniform: list[float]) -> int:
        wrong = (at for at, (ratio, u) in enumerate(zip(ratios, uniform, strict=True)) if ratio < u)
        return next(wrong, len(ratios))

    return _random(rng, case, verify)


def expand(rng: random.Random, case: Case) -> Batch:
    lengths = lengths_of(rng, 9)
    given: dict[str, Any] = {
        "cu_num_tokens_ptr": ends(lengths),
        "replace_from": 0,
        "replace_to": 1,
        "num_reqs": len(lengths),
        "pieces": len(lengths),
    }
    expected = {}
    for output, source in zip(
        ("output_ptr", "second_output_ptr", "third_output_ptr"),
        ("input_ptr", "second_input_ptr", "third_input_ptr"),
        strict=True,
    ):
        kind = np.float32 if case.signature.get(output) == "*fp32" else np.int32
        values = [rng.choice([0, 2, 3]) for _ in lengths]
        given[source] = np.array(values, kind)
        given[output] = np.full(sum(lengths), -7, kind)
        written = [1 if value == 0 and output == "output_ptr" else value for value in values]
        expected[output] = np.repeat(written, lengths).astype(kind)
    return given, expected


def recovered_best_of_tiles(rng: random.Random, case: Case) -> Batch:
    tile = case.constants["TILE"]
    vocab = case.constants.get("vocab_size", rng.choice([1, tile, 2 * tile + 5]))
    tiles, most = -(-vocab // tile), 3
    lengths = [rng.randint(0, most) for _ in range(2)]
    tokens = sum(lengths)
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    # Few values, so that many are equal: the first wins.
    target = numbers.choice([0, 0.25, 0.5], (tokens, vocab)).astype(np.float32)
    draft_probs = numbers.choice([0, 0.25], (tokens, vocab)).astype(np.float32)
    q = numbers.choice([0.5, 1, 2], (2, vocab)).astype(np.float32)
    draft = [rng.randint(-1, vocab) for _ in range(tokens)]
    best = np.full((tokens, tiles, 2), -7, np.int32)
    after = best.copy()
    token = 0
    for request, length in enumerate(lengths):
        for _ in range(length):
            more = target[token].copy()
            if "draft_probs_ptr" in case.signature:
                more -= draft_probs[token]
            elif 0 <= draft[token] < vocab:
                more[draft[token]] = 0
            score = np.maximum(more / q[request], 0)
            for part in range(tiles):
                inside = score[part * tile : (part + 1) * tile]
                after[token, part] = inside.max().view(np.int32), part * tile + int(inside.argmax())
            token += 1
    given = {
        "best_ptr": best,
        "cu_num_draft_tokens_ptr": ends(lengths),
        "draft_token_ids_ptr": i32(draft),
        "draft_probs_ptr": draft_probs,
        "target_probs_ptr": target,
        "q_ptr": q,
        "num_items": 2 * most * tiles,
        "pieces": 2 * most * tiles,
        "max_spec_len": most,
        "vocab_size": vocab,
        "tiles": tiles,
    }
    return given, {"best_ptr": after}


def recovered_best_of_all(rng: random.Random, case: Case) -> Batch:
    tiles, tokens = rng.randint(1, case.constants["TILES"]), rng.choice([1, 3, 50])
    score = np.array([[rng.choice([0, 0.5, 1, 2]) for _ in range(tiles)] for _ in range(tokens)], np.float32)
    index = np.arange(tiles, dtype=np.int32) * 100 + 7
    best = np.stack([score.view(np.int32), np.broadcast_to(index, score.shape)], -1)
    given = {
        "output_token_ids_ptr": np.full(tokens, -7, np.int32),
        "best_ptr": best,
        "num_tokens": tokens,
        "pieces": tokens,
        "tiles": tiles,
    }
    return given, {"output_token_ids_ptr": index[score.argmax(1)]}


# By file, or by file and Triton function.
ALGORITHMS: dict[str, Callable[[random.Random, Case], Batch]] = {
    "prepare_inputs_padded": prepare_inputs_padded,
    "prepare_next_token_padded": prepare_next_token_padded,
    "copy_and_expand_inputs": copy_and_expand_inputs,
    "rejection_greedy": rejection_greedy,
    "rejection_random": rejection_random,
    "expand": expand,
    "recovered_tokens._best_of_tiles": recovered_best_of_tiles,
    "recovered_tokens._best_of_all": recovered_best_of_all,
}


def algorithm_of(case: Case) -> Callable[[random.Random, Case], Batch]:
    file = case.name.split()[0]
    return ALGORITHMS.get(f"{file}.{case.kernel.fn.__name__}") or ALGORITHMS[file]


# Of cases that differ in sizes only, the first.
CASES = [kind[0] for kind in kinds()]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_gives_what_the_algorithm_gives(case: Case, compiled: Compiled, tmp_path: Path) -> None:
    algorithm = algorithm_of(case)
    lowered = compiled.lowered(case)
    library = x86.build(lowered, tmp_path)
    rng = random.Random(case.name)
    for turn in range(20):
        given, expected = algorithm(rng, case)
        arguments = {name: given[name] for name in case.signature}
        # Without a stride there is a program for each piece of work, and no more.
        programs = given["pieces"] if case.constants.get("STRIDE") is False else rng.choice([1, 3, 40])
        grid = programs, rng.choice([1, 2])
        got = x86.run(library, lowered.linalg, grid, arguments, at_end=turn % 2 == 0)
        for name, value in arguments.items():
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(got[name], np.ravel(expected.get(name, value)), err_msg=name)


def test_a_read_behind_an_array_is_seen(tmp_path: Path) -> None:
    lowered = lower(BEYOND_THE_END)
    library = x86.build(lowered, tmp_path)
    arguments = {"x_ptr": i32([4, 5]), "out_ptr": i32([0, 0]), "n": 2}
    with pytest.raises(x86.OutOfBounds):
        x86.run(library, lowered.linalg, (1, 1), arguments, at_end=True)
    assert x86.run(library, lowered.linalg, (1, 1), arguments, at_end=False)["out_ptr"].tolist() == [4, 4]


def test_a_read_in_front_of_an_array_is_seen(tmp_path: Path) -> None:
    case = next(case for case in BELOW_ZERO if case.name == "at_a_placeholder")
    lowered = lower(case)
    library = x86.build(lowered, tmp_path)
    arguments = {
        "draft_token_ids_ptr": i32([-1]),
        "probs_ptr": np.zeros(8, np.float32),
        "out_ptr": np.zeros(1, np.float32),
    }
    with pytest.raises(x86.OutOfBounds):
        x86.run(library, lowered.linalg, (1, 1), arguments, at_end=False)
