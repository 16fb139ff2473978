"""Uncertainty of a score over other rows: percentile intervals of the bootstrap."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mindbatch.evaluation.scoring.metric import FloatArray, Metric

SAMPLES = 2000
CONFIDENCE = 0.95
FEWEST_CLUSTERS = 5
"""With fewer there are so few different resamples that an interval would say nothing."""
_SEED = 20240117
_MOST_AT_ONCE = 1 << 22  # numbers of a block of resamples


class Interval(NamedTuple):
    """Between which the score lies; CONFIDENCE of the resamples."""

    low: float
    high: float


class Estimate(NamedTuple):
    """A score of rows. interval, stderr: None where there are too few rows, or clusters of them, to tell."""

    value: float
    num_rows: int
    stderr: float | None
    interval: Interval | None


class Clusters:
    """Rows that are drawn together, because they are no independent questions: turns of a chat, say.

    Cameron, Gelbach, Miller 2008, "Bootstrap-based improvements for inference with clustered errors" (the
    pairs cluster bootstrap). Without clusters each row is one.
    """

    def __init__(self, names: Sequence[Hashable]) -> None:
        numbers: dict[Hashable, int] = {}
        self.of_row = np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)
        self.count = len(numbers)

    def sums(self, rows: FloatArray) -> FloatArray:
        """The sums [clusters, k] of rows [rows, k]."""
        total = np.zeros((self.count, rows.shape[1]))
        np.add.at(total, self.of_row, rows)
        return total


def resampled(metric: Metric[Any], cluster_sums: Sequence[FloatArray], samples: int = SAMPLES) -> FloatArray:
    """Values [systems, samples] of the same resamples of the clusters for all systems.

    cluster_sums: of each system, [clusters, k]. The draws depend on the number of clusters alone.
    """
    count = len(cluster_sums[0])
    draw = np.random.Generator(np.random.PCG64([_SEED, count]))
    values = np.empty((len(cluster_sums), samples))
    at_once = max(1, _MOST_AT_ONCE // max(count, 1))
    for first in range(0, samples, at_once):
        last = min(first + at_once, samples)
        weights = draw.multinomial(count, np.full(count, 1.0 / count), size=last - first).astype(np.float64)
        for system, sums in enumerate(cluster_sums):
            values[system, first:last] = metric.value(weights @ sums)
    return values


def estimate(metric: Metric[Any], sums: FloatArray, clusters: Clusters) -> Estimate:
    """The score of rows with its standard error and its interval; NaN without any. sums: [rows, k]."""
    if not len(sums):
        return Estimate(float("nan"), 0, None, None)
    value = float(metric.value(sums.sum(axis=0)))
    if clusters.count < FEWEST_CLUSTERS:
        return Estimate(value, len(sums), None, None)
    values = resampled(metric, [clusters.sums(sums)])[0]
    return Estimate(value, len(sums), _deviation(values), percentiles(values))


def _deviation(values: FloatArray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.std(ddof=1)) if len(finite) > 1 else None


def percentiles(values: FloatArray) -> Interval | None:
    """The interval that holds CONFIDENCE of the values that are finite; None where there are none."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(finite, [tail, 100 - tail])
    return Interval(float(low), float(high))
