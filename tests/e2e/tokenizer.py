# SPDX-License-Identifier: Apache-2.0
"""A tokenizer for the tiny models, for what needs text: stop strings, bad words, grammars."""

from __future__ import annotations

import string
from pathlib import Path

VOCAB = 320


def tokens() -> list[str]:
    """Token by id: three special ones, every printable character, then pairs of small letters."""
    letters = string.ascii_lowercase
    pairs = [first + second for first in letters for second in letters]
    return ["<pad>", "<s>", "</s>", *string.printable[:95], *pairs][:VOCAB]


def write(directory: Path) -> Path:
    """Write it; returns the directory, for ``tokenizer=``."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens())}, unk_token="<pad>"))
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(directory)
    return directory
