# SPDX-License-Identifier: Apache-2.0
"""Loads and stores that can reach below the first element of their pointer, read off a kernel's TTIR.

Such a load faults on the NPU even where its mask is false. Least values are followed through the code:
numbers that the kernel is given and numbers loaded from memory count as zero or more, sizes of the model
as one or more, and numbers from pointers named `*token_ids*` as -1 or more, which is what they hold
where there is no token. What is subtracted may be of any size, so `x - y` wants a `tl.maximum` before it
is an offset. What is chosen by `tl.where(x >= 0, ...)`, or a scalar inside `if x >= 0:`, is known to be
so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .cases import SAME_FOR_A_MODEL

PLACEHOLDERS = "token_ids"

_NAME = r"%[\w#]+"
_UNKNOWN = -math.inf
_OPPOSITE = {"slt": "sge", "sle": "sgt", "sgt": "sle", "sge": "slt", "eq": "ne"}

_AGAIN = (
    "arith.addi",
    "arith.muli",
    "arith.subi",
    "arith.extsi",
    "tt.splat",
    "tt.broadcast",
    "tt.expand_dims",
)


@dataclass
class _Op:
    """An operation; its regions are lists of operations."""

    line: str
    regions: list[list[_Op]] = field(default_factory=list)

    def __post_init__(self) -> None:
        left, equals, right = self.line.partition(" = ")
        named = equals and left.startswith("%")
        self.result = left.split(":")[0] if named else ""
        text = right if named else self.line
        word = re.match(r'"?([\w.]+)"?', text)
        self.kind = word[1] if word else ""
        self.rest = text[word.end() :] if word else text
        self.given = re.findall(_NAME, self.rest)

    def results(self, number: int) -> list[str]:
        """The names under which the code below knows the results."""
        return [self.result] if number == 1 else [f"{self.result}#{i}" for i in range(number)]


def _parse(lines: Iterator[str]) -> list[_Op]:
    """The operations up to the end of the block."""
    block: list[_Op] = []
    for line in lines:
        line = line.strip()
        if not line.startswith("^"):  # a block's arguments have a location each
            line = re.sub(r" loc\(.*", "", line)
        if line.startswith("}"):
            if not line.endswith("{"):
                return block
            # Another region of the operation that the block belongs to.
            block.append(_Op("another region", [_parse(lines)]))
            return block
        op = _Op(line)
        block.append(op)
        if line.endswith("{"):
            region = _parse(lines)
            while region and region[-1].line == "another region":
                another = region.pop()
                op.regions.append(region)
                region = another.regions[0]
            op.regions.append(region)
    return block


class _Walk:
    def __init__(self) -> None:
        self.least: dict[str, float] = {}
        self.pointers: dict[str, tuple[str, float]] = {}  # the argument that it comes from, the least offset
        self.ops: dict[str, _Op] = {}
        self.found: dict[str, None] = {}

    def of(self, name: str) -> float:
        return self.least.get(name, _UNKNOWN)

    def copy(self, source: str, to: str) -> None:
        self.least[to] = self.of(source)
        if source in self.pointers:
            self.pointers[to] = self.pointers[source]

    def join(self, sources: list[str], to: str) -> None:
        self.least[to] = min(map(self.of, sources))
        if all(source in self.pointers for source in sources):
            argument = self.pointers[sources[0]][0]
            self.pointers[to] = argument, min(self.pointers[source][1] for source in sources)

    def known(self, condition: str, holds: bool) -> dict[str, float]:
        """Least values that follow from a condition."""
        op = self.ops.get(condition)
        if op is None:
            return {}
        if op.kind == "arith.andi" and holds:
            return self.known(op.given[0], True) | self.known(op.given[1], True)
        if op.kind != "arith.cmpi":
            return {}
        predicate, (left, right) = op.rest.split(",")[0].strip(), op.given[:2]
        if not holds:
            predicate = _OPPOSITE.get(predicate, "")
        if predicate == "ne" and self.of(left) == self.of(right):
            predicate = "sgt"
        return {
            "sge": {left: self.of(right)},
            "sgt": {left: self.of(right) + 1},
            "sle": {right: self.of(left)},
            "slt": {right: self.of(left) + 1},
        }.get(predicate, {})

    def given_that(self, name: str, facts: dict[str, float]) -> float:
        """A least value again, with what is known where it is chosen."""
        op = self.ops.get(name)
        if name in facts:
            return max(self.of(name), facts[name])
        if not facts or op is None or op.regions or op.kind not in _AGAIN:
            return self.of(name)
        kept = {value: self.of(value) for value in [name, *op.given]}
        self.least |= {value: self.given_that(value, facts) for value in op.given}
        self.step(op)
        least = self.of(name)
        self.least |= kept
        return least

    def block(self, ops: list[_Op], report: bool) -> list[str]:
        """Walks a block; gives what its end hands on."""
        for op in ops:
            self.ops[op.result] = op
            if op.kind in ("scf.yield", "scf.condition"):
                values = re.findall(_NAME, op.rest.split(" : ")[0])
                return values[1:] if op.kind == "scf.condition" else values
            if op.kind == "scf.for":
                self.loop(op, report)
            elif op.kind == "scf.while":
                self.while_loop(op, report)
            elif op.kind == "scf.if":
                self.branch(op, report)
            elif op.kind in ("tt.load", "tt.store") or op.kind.startswith("tt.atomic"):
                pointer = next(name for name in op.given if name in self.pointers or "atomic" not in op.kind)
                argument, offset = self.pointers.get(pointer, ("a pointer of unknown origin", _UNKNOWN))
                if report and offset < 0:
                    self.found[f"{argument}: {op.line}"] = None
                self.least[op.result] = -1 if PLACEHOLDERS in argument else 0
            else:
                self.step(op)
        return []

    def turn(self, op: _Op, starts: dict[str, str], region: list[_Op], report: bool) -> list[str]:
        """A loop's region until what it carries falls no more: what still falls in the second turn may fall
        without end."""
        for inner, start in starts.items():
            self.copy(start, inner)
        ends: list[str] = []
        for attempt in range(3):
            ends = self.block(region, report=False)
            for inner, end in zip(starts, ends, strict=False):
                if self.of(end) < self.of(inner):
                    self.least[inner] = self.of(end) if attempt == 0 else _UNKNOWN
                if inner in self.pointers and end in self.pointers:
                    argument, offset = self.pointers[inner]
                    if self.pointers[end][1] < offset:
                        self.pointers[inner] = argument, self.pointers[end][1] if attempt == 0 else _UNKNOWN
        if report:
            self.block(region, report=True)
        return ends

    def loop(self, op: _Op, report: bool) -> None:
        counter, first = op.given[:2]
        self.least[counter] = self.of(first)
        carried = re.search(r"iter_args\((.*?)\)", op.rest)
        starts = dict(re.findall(rf"({_NAME}) = ({_NAME})", carried[1])) if carried else {}
        ends = self.turn(op, starts, op.regions[0], report)
        for (inner, start), end, result in zip(starts.items(), ends, op.results(len(starts)), strict=True):
            self.join([start, inner, end], result)

    def while_loop(self, op: _Op, report: bool) -> None:
        starts = dict(re.findall(rf"({_NAME}) = ({_NAME})", op.rest))
        before, after = op.regions
        arguments = (
            re.findall(rf"({_NAME}):", after[0].line) if after and after[0].line.startswith("^") else []
        )
        both = [step for step in before if step.kind != "scf.condition"]
        condition = before[-1]
        handed = re.findall(_NAME, condition.rest.split(" : ")[0])[1:]
        both += [_Op(f"{inner} = tt.splat {value}") for inner, value in zip(arguments, handed, strict=True)]
        self.turn(op, starts, both + after, report)
        for value, result in zip(handed, op.results(len(handed)), strict=True):
            self.copy(value, result)

    def branch(self, op: _Op, report: bool) -> None:
        handed = []
        for holds, region in zip((True, False), op.regions, strict=False):
            kept = dict(self.least)
            for name, least in self.known(op.given[0], holds).items():
                self.least[name] = max(self.of(name), least)
            handed.append(self.block(region, report))
            self.least |= {name: kept[name] for name in kept}
        for values in [list(pair) for pair in zip(*handed, strict=False)] and [
            list(zip(*handed, strict=True))
        ]:
            for result, pair in zip(op.results(len(values)), values, strict=True):
                self.join(list(pair), result)

    def step(self, op: _Op) -> None:
        kind, name, given = op.kind, op.result, op.given
        least: float = _UNKNOWN
        if kind == "arith.constant":
            number = re.search(r"(?:dense<)?(-?\d[\d.e+-]*)", op.rest)
            least = float(number[1]) if number and "true" not in op.rest and "false" not in op.rest else 0
        elif kind in ("tt.get_program_id", "arith.cmpi", "arith.cmpf"):
            least = 0
        elif kind == "tt.get_num_programs":
            least = 1
        elif kind == "tt.make_range":
            least = float(re.findall(r"start = (-?\d+)", op.rest)[0])
        elif kind == "tt.addptr":
            argument, offset = self.pointers.get(given[0], ("a pointer of unknown origin", _UNKNOWN))
            self.pointers[name] = argument, offset + self.of(given[1])
        elif kind == "arith.addi":
            least = self.of(given[0]) + self.of(given[1])
        elif kind == "arith.subi":
            constant = self.ops.get(given[1])
            if constant is not None and constant.kind == "arith.constant":
                least = self.of(given[0]) - self.of(given[1])
        elif kind in ("arith.maxsi", "arith.maxui"):
            least = max(self.of(given[0]), self.of(given[1]))
        elif kind == "arith.minsi":
            least = min(self.of(given[0]), self.of(given[1]))
        elif kind == "arith.muli":
            if min(self.of(given[0]), self.of(given[1])) >= 0:
                least = self.of(given[0]) * self.of(given[1])
        elif kind == "arith.select":
            self.join(given[1:3], name)
            chosen = zip(given[1:3], (True, False), strict=True)
            self.least[name] = min(
                self.given_that(value, self.known(given[0], holds)) for value, holds in chosen
            )
            return
        elif kind in ("tt.reduce", "tt.scan"):
            least = min(0, *(self.of(value) for value in given if value in self.least)) if given else _UNKNOWN
        elif len(given) == 1 and kind.split(".")[0] in ("tt", "arith"):
            # Casts and shapes.
            self.copy(given[0], name)
            return
        elif kind.startswith("arith.") and all(self.of(value) >= 0 for value in given):
            # Division, remainder, shifts and bits of what is not negative.
            least = 0
        self.least[name] = least


def below_zero(ttir: str, arguments: list[str]) -> list[str]:
    """The loads and stores whose offset can be below zero: the argument they reach from, and the TTIR line.

    Args:
        arguments: the names of the kernel's arguments that are not constants, in order.
    """
    header = re.search(r"tt\.func public @\w+\((.*?)\) attributes[^\n]*\n", ttir, re.DOTALL)
    assert header is not None, "no kernel in the TTIR"
    walk = _Walk()
    given = re.findall(r"(%\w+): (!tt\.ptr<\w+>|\w+)", header[1])
    for (name, kind), argument in zip(given, arguments, strict=True):
        walk.least[name] = int(SAME_FOR_A_MODEL.fullmatch(argument) is not None)
        if kind.startswith("!tt.ptr"):
            walk.pointers[name] = argument, 0
    walk.block(_parse(iter(ttir[header.end() :].splitlines())), report=True)
    return list(walk.found)
