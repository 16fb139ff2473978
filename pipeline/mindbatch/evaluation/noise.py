"""Uncertainty of a measure over other prompts, and which strategies differ by more than that."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mindbatch.evaluation.measured import STATISTICS, PromptParts

FEWEST_PROMPTS = 6
"""With fewer prompts even a strategy that is better for each of them is so by chance in 1 of 16 cases."""
FEWEST_TIMINGS = 3
CONFIDENCE = 0.95
MOST_SAMPLES = 400
_MOST_WORK = 40_000  # prompts x samples, so that a large comparison is still measured in seconds
_FEWEST_SAMPLES = 80

Interval = tuple[float, float]


@dataclass(frozen=True)
class Resampled:
    """One measure of every strategy: its value, and what it is in each random half of the prompts.

    Halves drawn without replacement vary as much as the whole would with other prompts (McCarthy 1969,
    "Pseudo-replication: Half samples"), and unlike a bootstrap's they hold no prompt twice, which would look
    like repetition. The same halves serve all strategies, so that differences are paired.
    """

    values: Mapping[str, float | None]
    halves: Mapping[str, Sequence[float | None]]

    def interval(self, name: str) -> Interval | None:
        """The 95% interval of a strategy's value; None where it cannot be told."""
        value, halves = self.values[name], _finite(self.halves[name])
        if value is None or not math.isfinite(value) or not halves:
            return None
        middle = sum(halves) / len(halves)
        low, high = _tail(halves)
        return value + low - middle, value + high - middle

    def leaders(self, best: str) -> list[str] | None:
        """The strategies from which the best one does not differ beyond noise, itself among them.

        best: "low" or "high". None where nothing can be told: too few prompts, or no values.
        """
        sign = -1.0 if best == "low" else 1.0
        known = {name: sign * value for name, value in self.values.items() if value is not None}
        if not known or not any(self.halves.values()):
            return None
        top = max(known, key=lambda name: known[name])
        return [name for name in known if not self._is_behind(name, top, sign)]

    def _is_behind(self, name: str, top: str, sign: float) -> bool:
        pairs = zip(self.halves[top], self.halves[name], strict=True)
        differences = [0.0 if a == b else sign * (a - b) for a, b in pairs if a is not None and b is not None]
        return bool(differences) and _tail(differences)[0] > 0


def resampled(strategies: Mapping[str, Sequence[PromptParts]], field: str) -> Resampled:
    """A measure of all strategies, which have the same prompts in the same order."""
    statistic = STATISTICS[field]
    halves = _halves(len(next(iter(strategies.values()))))
    return Resampled(
        {name: statistic(parts) for name, parts in strategies.items()},
        {
            name: [statistic([parts[index] for index in half]) for half in halves]
            for name, parts in strategies.items()
        },
    )


def fastest(speeds: Mapping[str, Sequence[float]]) -> list[str] | None:
    """The strategies whose speeds overlap with those of the one with the highest median, itself among them.

    speeds: tokens/s of each run, taken by turns. None where there are too few to tell.
    """
    if min(map(len, speeds.values())) < FEWEST_TIMINGS:
        return None
    top = max(speeds, key=lambda name: sorted(speeds[name])[len(speeds[name]) // 2])
    return [name for name in speeds if name == top or max(speeds[name]) >= min(speeds[top])]


def _halves(num_prompts: int) -> list[list[int]]:
    """Random halves of the prompts, the same at every call; none where there are too few."""
    if num_prompts < FEWEST_PROMPTS:
        return []
    draw = random.Random(num_prompts)
    count = max(_FEWEST_SAMPLES, min(MOST_SAMPLES, _MOST_WORK // num_prompts))
    return [draw.sample(range(num_prompts), num_prompts // 2) for _ in range(count)]


def _finite(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _tail(values: Sequence[float]) -> Interval:
    """The ends between which CONFIDENCE of the values lie."""
    ordered = sorted(values)
    cut = math.floor(len(ordered) * (1 - CONFIDENCE) / 2)
    return ordered[cut], ordered[-1 - cut]
