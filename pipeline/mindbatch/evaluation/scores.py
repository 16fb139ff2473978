"""Scores of columns by a metric over the same rows, their uncertainty, and differences beyond chance."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np

from mindbatch.evaluation.metric import FloatArray, Metric, Row

SAMPLES = 2000
CONFIDENCE = 0.95
SIGNIFICANCE = 0.05
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


def sums_of_clusters(rows: FloatArray, clusters: Sequence[Hashable]) -> FloatArray:
    """The sums [clusters, k] of rows [rows, k], of which those of one cluster are drawn together.

    They are no independent questions: turns of a chat, say. Cameron, Gelbach, Miller 2008, "Bootstrap-based
    improvements for inference with clustered errors" (the pairs cluster bootstrap).
    """
    numbers: dict[Hashable, int] = {}
    cluster_of_row = [numbers.setdefault(cluster, len(numbers)) for cluster in clusters]
    total = np.zeros((len(numbers), rows.shape[1]))
    np.add.at(total, cluster_of_row, rows)
    return total


def resampled(metric: Metric, systems: Sequence[FloatArray]) -> FloatArray:
    """Values [systems, SAMPLES] of the same resamples of the clusters for all systems; none of too few.

    systems: the sums of each, [clusters, k]. The draws depend on the number of clusters alone.
    """
    num_clusters = len(systems[0])
    if num_clusters < FEWEST_CLUSTERS:
        return np.zeros((len(systems), 0))
    draw = np.random.Generator(np.random.PCG64([_SEED, num_clusters]))
    block = max(1, _MOST_AT_ONCE // num_clusters)
    values = []
    for first in range(0, SAMPLES, block):
        drawn = draw.integers(0, num_clusters, (min(block, SAMPLES - first), num_clusters))
        values.append([metric.value(sums[drawn].sum(axis=1)) for sums in systems])
    return np.concatenate(values, axis=1)


def spread(values: FloatArray) -> tuple[float | None, Interval | None]:
    """Standard deviation and CONFIDENCE interval of the values that are finite; None of fewer than two."""
    finite = values[np.isfinite(values)]
    if len(finite) < 2:
        return None, None
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(finite, [tail, 100 - tail])
    return float(finite.std(ddof=1)), Interval(float(low), float(high))


def smallest_difference(stderr: float) -> float:
    """The difference that is found with POWER by a two-sided test at 1 - CONFIDENCE.

    stderr: of a paired difference. Miller 2024, "Adding error bars to evals", section 5.
    """
    quantile = NormalDist().inv_cdf
    return (quantile(1 - (1 - CONFIDENCE) / 2) + quantile(POWER)) * stderr


def rows_needed(stderr: float, num_rows: int, difference: float) -> int:
    """The rows with which a difference would be found, by the standard error that `num_rows` rows have."""
    return math.ceil(num_rows * (smallest_difference(stderr) / difference) ** 2)


@dataclass(frozen=True)
class Difference:
    """A system's score less that of the base, on the same rows.

    p_value: of no difference; None where it cannot be told. test: how it was found.
    gained, lost: rows that are right in the one only, of metrics that are right or wrong.
    adjusted: the p-value after Holm's correction for the other comparisons. stderr: of the value.
    """

    value: float
    interval: Interval | None
    p_value: float | None
    test: Literal["mcnemar", "bootstrap"]
    gained: int | None = None
    lost: int | None = None
    adjusted: float | None = None
    stderr: float | None = None

    @property
    def is_beyond_chance(self) -> bool:
        return self.adjusted is not None and self.adjusted < SIGNIFICANCE


def compared(
    metric: Metric, systems: Mapping[str, FloatArray], clusters: Sequence[Hashable], baseline: str
) -> tuple[dict[str, Estimate], dict[str, Difference]]:
    """Estimates of all systems, and the differences of all others from the baseline.

    systems: the sums [rows, k] of the same rows in the same order; without rows a system has no score and no
    difference. clusters: of each row.
    """
    known = {name: rows for name, rows in systems.items() if len(rows)}
    by_cluster = [sums_of_clusters(rows, clusters) for rows in known.values()]
    resamples = dict(zip(known, resampled(metric, by_cluster), strict=True)) if known else {}
    estimates = dict.fromkeys(systems, Estimate(math.nan, 0, None, None))
    differences = {}
    for name, rows in known.items():
        value, values = float(metric.value(rows.sum(axis=0))), resamples[name]
        estimates[name] = Estimate(value, len(rows), *spread(values))
        if name != baseline and baseline in known:
            change = values - resamples[baseline]
            differences[name] = _difference(metric, rows, known[baseline], change, len(by_cluster[0]))
    adjusted = holm({name: difference.p_value for name, difference in differences.items()})
    return estimates, {
        name: replace(difference, adjusted=adjusted[name]) for name, difference in differences.items()
    }


def _difference(
    metric: Metric, system: FloatArray, base: FloatArray, resamples: FloatArray, num_clusters: int
) -> Difference:
    """Compares two systems by the sums [rows, k] of the same rows, and resampled differences.

    Rows that are right or wrong, one sample of each and no clusters: McNemar's exact test. Else the paired
    bootstrap, Efron and Tibshirani 1993, chapter 16: resampled differences, centred on 0, are those of no
    difference.
    """
    value = float(metric.value(system.sum(axis=0)) - metric.value(base.sum(axis=0)))
    gained, lost = _changes(metric, system, base)
    stderr, interval = spread(resamples)
    if gained is not None and lost is not None and num_clusters == len(system):
        exact = mcnemar(gained, lost)
        return Difference(value, interval, exact, "mcnemar", gained, lost, stderr=stderr)
    p_value = _bootstrap_p(value, resamples)
    return Difference(value, interval, p_value, "bootstrap", gained, lost, stderr=stderr)


def mcnemar(gained: int, lost: int) -> float:
    """The two-sided p-value of the exact test: of n rows that changed, how likely is a split so uneven.

    McNemar 1947, with the binomial distribution of 1/2 instead of its approximation by chi-square.
    """
    from scipy.stats import binomtest  # half a second, which only answers that are right or wrong pay for

    return float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def holm(p_values: Mapping[str, float | None]) -> dict[str, float | None]:
    """The p-values adjusted for their number, so that one mistake among all of them is SIGNIFICANCE likely.

    Holm 1979, "A simple sequentially rejective multiple test procedure". None stays None and does not count.
    """
    known = sorted((value, name) for name, value in p_values.items() if value is not None)
    adjusted: dict[str, float | None] = dict.fromkeys(p_values)
    largest = 0.0
    for rank, (value, name) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * value))
        adjusted[name] = largest
    return adjusted


def _changes(metric: Metric, system: FloatArray, base: FloatArray) -> tuple[int | None, int | None]:
    """The rows that only one of them has right; None where a row is not right or wrong as a whole."""
    if not metric.is_right_or_wrong or (np.concatenate([system, base])[:, 1] != 1).any():
        return None, None
    change: FloatArray = system[:, 0] - base[:, 0]
    return int((change > 0).sum()), int((change < 0).sum())


def _bootstrap_p(value: float, differences: FloatArray) -> float | None:
    """The share of resamples that are at least as far from their centre as the value is from 0; never 0."""
    finite = differences[np.isfinite(differences)]
    if not len(finite) or not math.isfinite(value):
        return None
    beyond = int((np.abs(finite - finite.mean()) >= abs(value) - 1e-12).sum())
    return (beyond + 1) / (len(finite) + 1)


@dataclass(frozen=True)
class MetricScores:
    """One metric of all columns.

    rows: the numbers of the questions that every column has, which alone are counted; but for columns without
    any, of which nothing is scored.
    per_row: each column's score of each of these, where the metric has such.
    differences: of every column but the baseline, with p-values adjusted for their number.
    """

    metric: Metric
    rows: tuple[int, ...]
    per_row: Mapping[str, Mapping[int, float]]
    estimates: Mapping[str, Estimate]
    differences: Mapping[str, Difference]

    @property
    def unscored(self) -> list[str]:
        return [name for name, estimated in self.estimates.items() if not estimated.num_rows]


def scores_of(
    metric: Metric,
    columns: Mapping[str, Mapping[int, Row]],
    clusters: Sequence[str | None],
    baseline: str,
) -> MetricScores:
    """Measures the columns by a metric.

    columns: what it measures of each column, by the number of the question. clusters: of each question; None
    where it belongs to no other.
    """
    ran = [set(measured) for measured in columns.values() if measured]
    rows = tuple(sorted(set.intersection(*ran))) if ran else ()
    scored = [name for name, measured in columns.items() if measured]
    items = metric.comparable([[columns[name][row] for row in rows] for name in scored])
    sums = {name: metric.sums_of([]) for name in columns}
    sums |= {name: metric.sums_of(system) for name, system in zip(scored, items, strict=True)}
    groups = [row if clusters[row] is None else clusters[row] for row in rows]
    estimates, differences = compared(metric, sums, groups, baseline)
    per_row: dict[str, Mapping[int, float]] = dict.fromkeys(columns, {})
    for name in scored if metric.is_of_rows and rows else ():
        per_row[name] = dict(zip(rows, map(float, metric.value(sums[name])), strict=True))
    return MetricScores(metric, rows, per_row, estimates, differences)
