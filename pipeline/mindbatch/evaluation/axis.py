"""Axes of plots: where a value stands between two ends, and which round numbers to name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LOGARITHMIC_FROM = 10.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
ROOM = 0.15
"""Left free at each end, as a share of the distance of the smallest and the largest value: for names."""
_STEPS = (1, 2, 5)


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`, drawn from `start` to `stop` in the plot's units."""

    low: float
    high: float
    start: float
    stop: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Maps `value` to its position on the axis."""
        scale = math.log10 if self.logarithmic else float
        share = (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))
        return self.start + share * (self.stop - self.start)

    def ticks(self) -> list[float]:
        """Round numbers on the axis, about five of them."""
        if self.logarithmic:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            found = [step * 10.0**power for power in range(first, last + 1) for step in _STEPS]
            inside = [tick for tick in found if self.low <= tick <= self.high]
            return inside if len(inside) <= 6 else [t for t in inside if f"{t:e}".startswith("1.000000")]
        step = _round_step((self.high - self.low) / 5)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def axis_for(values: Sequence[float], start: float, stop: float, *, logarithmic: bool = False) -> Axis:
    """An axis that holds all `values`, with some room at its ends, but not below 0 without need. With
    `logarithmic` it may become so.

    The values are finite; those of an axis that may be logarithmic are above 0.
    """
    low, high = min(values), max(values)
    if logarithmic and high >= LOGARITHMIC_FROM * low:
        room = (high / low) ** ROOM
        return Axis(low / room, high * room, start, stop, True)
    room = ROOM * (high - low) or 0.5 * abs(high) or 1.0
    return Axis(max(0.0, low - room) if low >= 0 else low - room, high + room, start, stop)


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, ... or their decimal parts that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (*_STEPS, 10) if step * power >= least * (1 - 1e-9))
