"""Where the arrays of a program lie: few buffers, each used again once nothing reads what was in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mindbatch.kernels.arrays import CACHE_LINE
from mindbatch.kernels.recording import Recording, Symbol


@dataclass(frozen=True)
class Buffers:
    """offsets: in bytes for each row of a step: in a step of n rows an array begins at n times that.
    row_bytes: of all buffers together, for each row."""

    offsets: Mapping[Symbol, int]
    row_bytes: int


@dataclass(frozen=True)
class _Use:
    """The calls from which to which a symbol's memory is its own; `size` bytes a row."""

    symbol: Symbol
    first: int
    last: int
    size: int

    def meets(self, other: _Use) -> bool:
        return self.first <= other.last and other.first <= self.last


def row_bytes(symbol: Symbol) -> int:
    """Bytes of a row of what a call writes."""
    return math.prod(symbol.shape[1:]) * symbol.dtype.itemsize


def plan_buffers(recording: Recording) -> Buffers:
    """A place for each symbol that calls write, but for the recording's outputs: the lowest that is free."""
    placed: list[tuple[int, _Use]] = []
    for use in _uses(recording):
        offset = 0
        for taken, other in sorted(placed, key=lambda each: each[0]):
            if use.meets(other) and taken < offset + use.size:
                offset = max(offset, taken + other.size)
        placed.append((offset, use))
    total = max((offset + use.size for offset, use in placed), default=0)
    return Buffers({use.symbol: offset for offset, use in placed}, total)


def _uses(recording: Recording) -> Iterator[_Use]:
    """In the order of calls. Sizes are whole cache lines, so that every array begins with one."""
    last = {
        each: index
        for index, call in enumerate(recording.calls)
        for each in call.inputs
        if isinstance(each, Symbol)
    }
    for index, call in enumerate(recording.calls):
        for symbol in call.outputs:
            if symbol not in recording.outputs:
                size = -(-row_bytes(symbol) // CACHE_LINE) * CACHE_LINE
                yield _Use(symbol, index, last.get(symbol, index), size)
