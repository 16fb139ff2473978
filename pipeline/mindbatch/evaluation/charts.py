"""Charts of the page of a run: how lengths are distributed, how often outcomes are, a speed over time."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from mindbatch.evaluation.rendering import rendered
from mindbatch.io.amounts import duration

MAX_BINS = 20
_TAIL = 0.99
_LONG_TAIL = 2
"""If the largest value is more than this many times the 99th percentile, one bin has all above that."""


@dataclass(frozen=True)
class Bin:
    """Number of values from `low` to `high`, both included; `high` is None if there is no end."""

    low: int
    high: int | None
    count: int

    @property
    def label(self) -> str:
        if self.high is None:
            return f"{self.low:,} and above"
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,} to {self.high:,}"


def quantile(ordered: Sequence[int], share: float) -> int:
    """Returns the smallest of the values, in ascending order, that at least this share does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def bins(values: Sequence[int]) -> list[Bin]:
    """Counts whole numbers in at most MAX_BINS bins of equal width, 1, 2 or 5 times a power of ten, and one
    above them if the tail is long."""
    ordered = sorted(values)
    low, end = ordered[0], ordered[-1]
    if (usual := max(quantile(ordered, _TAIL), 1)) * _LONG_TAIL < end:
        end = usual
    width = _bin_width((end - low + 1) / MAX_BINS)
    first = low // width
    counts = [0] * (end // width - first + 1)
    above = 0
    for value in ordered:
        if value // width - first < len(counts):
            counts[value // width - first] += 1
        else:
            above += 1
    edges = [(first + number) * width for number in range(len(counts) + 1)]
    filled = [Bin(edges[n], edges[n + 1] - 1, count) for n, count in enumerate(counts)]
    return [*filled, *([Bin(edges[-1], None, above)] if above else [])]


def histogram(identity: str, title: str, values: Sequence[int]) -> Markup:
    """Draws the distribution of whole numbers, at least one. identity: unique on the page."""
    counted = bins(values)
    return rendered(
        "histogram.svg.j2",
        identity=identity,
        title=title,
        bins=counted,
        highest=max(entry.count for entry in counted),
    )


def shares(identity: str, title: str, counts: Mapping[str, int]) -> Markup:
    """Draws a bar for each name, the largest count first, with its share of all."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    total = max(sum(counts.values()), 1)
    return rendered("shares.svg.j2", identity=identity, title=title, counts=ordered, total=total)


@dataclass(frozen=True)
class MeanSpeed:
    """The mean speed between two moments, in seconds of running."""

    start: float
    end: float
    speed: float


def timeline(identity: str, title: str, sessions: Sequence[Sequence[MeanSpeed]]) -> Markup:
    """Draws a speed over time, with a line where each session but the first begins. Needs an interval."""
    intervals = [interval for session in sessions for interval in session]
    highest = max(interval.speed for interval in intervals)
    return rendered(
        "timeline.svg.j2",
        identity=identity,
        title=title,
        sessions=[session for session in sessions if session],
        seconds=max(interval.end for interval in intervals) or 1.0,
        top=_rounded_up(highest),
        duration=duration,
    )


def _bin_width(least: float) -> int:
    return max(1, math.ceil(_rounded_up(least)))


def _rounded_up(value: float) -> float:
    """Returns the next number of the form 1, 2 or 5 times a power of ten; 1 for nothing."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10, 20) if step * power >= value)
