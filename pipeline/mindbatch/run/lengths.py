"""Counting lengths: how many rows have how many tokens. Memory does not grow with the rows."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple


class LengthRange(NamedTuple):
    """Lengths from `first` to `last`, and how many rows have one of them."""

    first: int
    last: int
    rows: int


class Lengths:
    """Lengths in tokens. What is asked of none at all is 0."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, length: int, times: int = 1) -> None:
        """Counts a length."""
        self._counts[length] += times

    @property
    def count(self) -> int:
        """How many there are."""
        return self._counts.total()

    @property
    def total(self) -> int:
        """Their sum."""
        return sum(length * count for length, count in self._counts.items())

    @property
    def mean(self) -> float:
        """Their average."""
        return self.total / max(1, self.count)

    @property
    def longest(self) -> int:
        """The largest."""
        return max(self._counts, default=0)

    def quantile(self, share: float) -> int:
        """The smallest length that at least this share of them does not exceed."""
        below = 0
        for length in sorted(self._counts):
            below += self._counts[length]
            if below >= share * self.count:
                return length
        return 0

    def histogram(self) -> list[LengthRange]:
        """Ranges between powers of two (1, 2-3, 4-7, ...), from the first that holds any to the last."""
        if not self._counts:
            return []
        sizes: Counter[int] = Counter()
        for length, count in self._counts.items():
            sizes[length.bit_length()] += count
        return [
            LengthRange(1 << size >> 1, (1 << size) - 1, sizes[size])
            for size in range(min(sizes), max(sizes) + 1)
        ]
