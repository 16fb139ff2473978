"""Uncertainty of a score over other rows: percentile intervals of the bootstrap, and statistical power."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mindbatch.evaluation.scoring.metric import FloatArray, Metric

SAMPLES = 2000
CONFIDENCE = 0.95
POWER = 0.8
"""Probability with which a true difference is to be found."""
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
    pairs cluster bootstrap). Without clusters each row is one, with all of its samples.
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


def resampled(metric: Metric[Any], cluster_sums: Sequence[FloatArray]) -> FloatArray:
    """Values [systems, SAMPLES] of the same resamples of the clusters for all systems.

    cluster_sums: of each system, [clusters, k]. The draws depend on the number of clusters alone.
    """
    from scipy.stats import bootstrap  # half a second, which only an evaluation pays for

    num_clusters, width = cluster_sums[0].shape
    columns = np.concatenate(cluster_sums, axis=1).T

    def values(*drawn: FloatArray, axis: int) -> FloatArray:
        totals = np.stack([column.sum(axis=axis) for column in drawn], axis=-1)
        parts = [totals[..., first : first + width] for first in range(0, totals.shape[-1], width)]
        return np.stack([metric.value(part) for part in parts])

    result = bootstrap(
        tuple(columns),
        values,
        n_resamples=SAMPLES,
        batch=max(1, _MOST_AT_ONCE // num_clusters),
        vectorized=True,
        paired=True,
        method="percentile",
        rng=np.random.Generator(np.random.PCG64([_SEED, num_clusters])),
    )
    distribution: FloatArray = result.bootstrap_distribution
    return distribution


def estimate(metric: Metric[Any], sums: FloatArray, clusters: Clusters) -> Estimate:
    """The score of rows with its standard error and its interval; NaN without any. sums: [rows, k]."""
    if not len(sums):
        return Estimate(float("nan"), 0, None, None)
    value = float(metric.value(sums.sum(axis=0)))
    if clusters.count < FEWEST_CLUSTERS:
        return Estimate(value, len(sums), None, None)
    values = resampled(metric, [clusters.sums(sums)])[0]
    return Estimate(value, len(sums), deviation(values), percentiles(values))


def deviation(values: FloatArray) -> float | None:
    """The standard deviation of the values that are finite; None of fewer than two."""
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


def smallest_difference(stderr: float) -> float:
    """The difference that is found with POWER by a two-sided test at 1 - CONFIDENCE.

    stderr: of a paired difference. Miller 2024, "Adding error bars to evals", section 5.
    """
    from scipy.stats import norm

    return float(norm.ppf(1 - (1 - CONFIDENCE) / 2) + norm.ppf(POWER)) * stderr


def rows_needed(stderr: float, num_rows: int, difference: float) -> int:
    """The rows with which a difference would be found, by the standard error that `num_rows` rows have."""
    return math.ceil(num_rows * (smallest_difference(stderr) / difference) ** 2)
