"""Memory of a program's arrays: buffers that are used again, and memory for what it gives."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from mindbatch.kernels.arrays import CACHE_LINE, Array
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
        # From the lowest on, so that one pass finds the first gap that is wide enough.
        for taken, other in sorted(placed, key=lambda placed_use: placed_use[0]):
            if use.meets(other) and taken < offset + use.size:
                offset = max(offset, taken + other.size)
        placed.append((offset, use))
    total = max((offset + use.size for offset, use in placed), default=0)
    return Buffers({use.symbol: offset for offset, use in placed}, total)


def _uses(recording: Recording) -> Iterator[_Use]:
    """In the order of calls. Sizes are whole cache lines, so that every array begins with one."""
    last = {
        symbol: index
        for index, call in enumerate(recording.calls)
        for symbol in call.inputs
        if isinstance(symbol, Symbol)
    }
    for index, call in enumerate(recording.calls):
        for symbol in call.outputs:
            if symbol not in recording.outputs:
                size = -(-row_bytes(symbol) // CACHE_LINE) * CACHE_LINE
                yield _Use(symbol, index, last.get(symbol, index), size)


_REFERENCES_OF_OURS = 2  # the attribute, and the argument of getrefcount


class OutputMemory:
    """Arrays for one output of a program, of as many rows as each step has.

    The memory of the last one serves for the next, unless somebody still has that array or a view of it.

    address: of the array that was made last.
    """

    def __init__(self, symbol: Symbol) -> None:
        self._columns, self._dtype = symbol.shape[1:], symbol.dtype
        self._memory = np.empty(0, self._dtype)
        self.address = self._memory.ctypes.data

    def array(self, rows: int) -> Array:
        """Makes an array [rows, ...] whose content is undefined."""
        size = rows * math.prod(self._columns)
        if size > len(self._memory) or sys.getrefcount(self._memory) > _REFERENCES_OF_OURS:
            self._memory = np.empty(size, self._dtype)  # every view of it refers to it
            self.address = self._memory.ctypes.data
        return self._memory[:size].reshape(rows, *self._columns)
