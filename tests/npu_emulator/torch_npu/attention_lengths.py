# SPDX-License-Identifier: Apache-2.0
"""What the attention operators were asked to attend to, for comparing eager and graph mode."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from . import _emulator


class AttentionLengths(NamedTuple):
    """One attention operator that ran. Requests without keys are padding and left out."""

    query_lens: list[int]  # tokens of each request
    kv_lens: list[int]  # keys of each request, the query's own included
    operator: str


_recordings: list[list[AttentionLengths]] = []


@contextlib.contextmanager
def record() -> Iterator[list[AttentionLengths]]:
    """Collects, in order, the lengths of every attention operator that this process runs, in replays too."""
    records: list[AttentionLengths] = []
    _recordings.append(records)
    try:
        yield records
    finally:
        # by identity: another recording may hold equal records
        _recordings[:] = [other for other in _recordings if other is not records]


def note(operator: str, query_lens: Sequence[int], kv_lens: Sequence[int]) -> None:
    if not _recordings or _emulator.capturing():  # a device does not run what it captures
        return
    live = [(query, kv) for query, kv in zip(query_lens, kv_lens, strict=True) if kv > 0]
    for records in _recordings:
        records.append(AttentionLengths([query for query, _ in live], [kv for _, kv in live], operator))
