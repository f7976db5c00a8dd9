# SPDX-License-Identifier: Apache-2.0
"""Named sets of prompts, as token ids below the tiny models' vocabulary."""

from __future__ import annotations

import random

_MIXED_LENGTHS = (5, 17, 130, 41, 260)


def tokens(name: str) -> list[list[int]]:
    """``mixed``: five random prompts and a repetitive one. ``one``: a single prompt. ``short``: two
    of 5 and 17 tokens. ``many``: 32.

    ``shared_prefix``: six prompts with the same first 256 tokens (two KV blocks). ``block_edges``: prompts
    that end just before, at and just after the end of a KV block. ``growing``: prompts that fill eight blocks
    and whose output needs more. ``same_edge``: several prompts whose drafts cross the same end of a block.
    ``thrice``: those of ``mixed``, each three times.
    """
    return _SETS[name]()


def _random(source: random.Random, length: int) -> list[int]:
    return [source.randrange(3, 320) for _ in range(length)]


def _mixed() -> list[list[int]]:
    source = random.Random(7)
    return [*(_random(source, length) for length in _MIXED_LENGTHS), ([11, 12, 13, 14] * 12)[:45]]


def _one() -> list[list[int]]:
    return [_mixed()[3]]


def _short() -> list[list[int]]:
    return _mixed()[:2]


def _many() -> list[list[int]]:
    source = random.Random(32)
    return [_random(source, source.choice((1, 2, 9, 33, 64, 100, 129, 200))) for _ in range(32)]


def _shared_prefix() -> list[list[int]]:
    source = random.Random(9)
    prefix = _random(source, 256)
    return [prefix + _random(source, length) for length in (1, 2, 3, 5, 17, 40)]


def _block_edges() -> list[list[int]]:
    source = random.Random(128)
    return [_random(source, length) for length in (125, 126, 127, 128, 129, 255, 256)]


def _growing() -> list[list[int]]:
    source = random.Random(8)
    return [_random(source, length) for length in (110, 112, 115, 118, 232, 238)]


def _same_edge() -> list[list[int]]:
    source = random.Random(129)
    return [_random(source, length) for length in (127, 127, 128, 128, 128, 126, 126)]


def _thrice() -> list[list[int]]:
    return [prompt for prompt in _mixed() for _ in range(3)]


_SETS = {
    "mixed": _mixed,
    "one": _one,
    "short": _short,
    "many": _many,
    "shared_prefix": _shared_prefix,
    "block_edges": _block_edges,
    "growing": _growing,
    "same_edge": _same_edge,
    "thrice": _thrice,
}
