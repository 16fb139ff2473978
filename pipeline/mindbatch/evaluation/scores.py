"""Scores of columns by a metric over the same rows, their uncertainty, and differences beyond chance."""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from mindbatch.evaluation.chance import (
    SIGNIFICANCE,
    Interval,
    holm,
    mcnemar,
    paired_interval,
    randomized,
    resampled,
    share_interval,
    spread,
    sums_of_clusters,
)
from mindbatch.evaluation.metric import DoubleArray, Metric, Samples


class Estimate(NamedTuple):
    """A score of rows. interval, stderr: None where too few rows, or clusters of them, differ to tell."""

    value: float
    num_rows: int
    stderr: float | None
    interval: Interval | None


@dataclass(frozen=True)
class Difference:
    """A system's score less that of another, `base`, on the same rows.

    p_value: of no difference; None where too few rows differ. test: the test that it is of.
    interval: None where too few rows differ to tell.
    gained, lost: rows that are right in the one only, of metrics that are right or wrong.
    adjusted: the p-value after Holm's correction for the other comparisons. stderr: of the value.
    """

    base: str
    value: float
    interval: Interval | None
    p_value: float | None
    test: Literal["mcnemar", "randomization"]
    gained: int | None = None
    lost: int | None = None
    adjusted: float | None = None
    stderr: float | None = None

    @property
    def is_beyond_chance(self) -> bool:
        return self.adjusted is not None and self.adjusted < SIGNIFICANCE


def compared(
    metric: Metric,
    systems: Mapping[str, DoubleArray],
    clusters: Sequence[Hashable],
    baselines: Mapping[str, str],
) -> tuple[dict[str, Estimate], dict[str, Difference]]:
    """Estimates of all systems, and their differences from their baselines, which have themselves.

    systems: the sums [rows, k] of the same rows in the same order; without rows a system has no score and no
    difference. clusters: of each row.
    """
    known = {name: rows for name, rows in systems.items() if len(rows)}
    by_cluster = {name: sums_of_clusters(rows, clusters) for name, rows in known.items()}
    resamples = dict(zip(known, resampled(metric, [*by_cluster.values()]), strict=True)) if known else {}
    estimates = dict.fromkeys(systems, Estimate(math.nan, 0, None, None))
    differences = {}
    for name, rows in known.items():
        estimates[name] = _estimate(metric, rows, resamples[name], by_cluster[name])
        base = baselines[name]
        if name != base and base in known:
            pair = _Pair(base, rows, known[base], by_cluster[name], by_cluster[base])
            differences[name] = _difference(metric, pair, resamples[name] - resamples[base])
    adjusted = holm({name: difference.p_value for name, difference in differences.items()})
    return estimates, {
        name: replace(difference, adjusted=adjusted[name]) for name, difference in differences.items()
    }


def _estimate(metric: Metric, rows: DoubleArray, resamples: DoubleArray, clusters: DoubleArray) -> Estimate:
    """Estimates the score of rows [rows, k], whose sums by cluster were resampled."""
    value = float(metric.value(rows.sum(axis=0)))
    if metric.is_right_or_wrong and len(resamples):
        stderr = float(resamples.std(ddof=1))
        return Estimate(value, len(rows), stderr, share_interval(rows, len(clusters), stderr))
    return Estimate(value, len(rows), *spread(resamples, clusters))


class _Pair(NamedTuple):
    """Sums of the same rows of two systems, [rows, k], and of their clusters."""

    base_name: str
    system: DoubleArray
    base: DoubleArray
    system_clusters: DoubleArray
    base_clusters: DoubleArray

    @property
    def has_clusters(self) -> bool:
        return len(self.system_clusters) != len(self.system)


def _difference(metric: Metric, pair: _Pair, resamples: DoubleArray) -> Difference:
    """Compares two systems by sums of the same rows, and resampled differences.

    Rows that are right or wrong, one sample of each and no clusters: McNemar's exact test. Else `randomized`.
    """
    value = float(metric.value(pair.system.sum(axis=0)) - metric.value(pair.base.sum(axis=0)))
    gained, lost = _changes(metric, pair.system, pair.base)
    stderr, interval = spread(resamples, pair.system_clusters - pair.base_clusters)
    if gained is not None and lost is not None and not pair.has_clusters:
        exact = None  # of fewer rows than have resamples
        if len(resamples):
            interval = paired_interval(pair.system[:, 0], pair.base[:, 0])
            exact = mcnemar(gained, lost)
        return Difference(pair.base_name, value, interval, exact, "mcnemar", gained, lost, stderr=stderr)
    p_value = randomized(metric, pair.system_clusters, pair.base_clusters)
    return Difference(pair.base_name, value, interval, p_value, "randomization", gained, lost, stderr=stderr)


def _changes(metric: Metric, system: DoubleArray, base: DoubleArray) -> tuple[int | None, int | None]:
    """Counts the rows that only one of them has right; None where a row is not right or wrong as a whole."""
    if not metric.is_right_or_wrong or (np.concatenate([system, base])[:, 1] != 1).any():
        return None, None
    change: DoubleArray = system[:, 0] - base[:, 0]
    return int((change > 0).sum()), int((change < 0).sum())


@dataclass(frozen=True)
class MetricScores:
    """One metric of all columns.

    rows: the numbers of the questions that every column has, which alone are counted; but for columns without
    any, of which nothing is scored.
    per_row: each column's score of each of these, where the metric has such.
    differences: of every column from its baseline, with p-values adjusted for their number.
    """

    metric: Metric
    rows: tuple[int, ...]
    per_row: Mapping[str, Mapping[int, float]]
    estimates: Mapping[str, Estimate]
    differences: Mapping[str, Difference]

    @property
    def unscored(self) -> list[str]:
        return [name for name, estimated in self.estimates.items() if not estimated.num_rows]


def _rows_of(measured: Mapping[int, Samples], numbers: Iterable[int]) -> Iterator[Samples]:
    return (measured[number] for number in numbers)


def scores_of(
    metric: Metric,
    columns: Mapping[str, Mapping[int, Samples]],
    clusters: Sequence[str | None],
    baselines: Mapping[str, str],
) -> MetricScores:
    """Measures the columns by a metric.

    columns: what it measures of each column, by the number of the question. clusters: of each question; None
    where it belongs to no other. baselines: what each column is compared with, by its name.
    """
    ran = [set(measured) for measured in columns.values() if measured]
    rows = tuple(sorted(set.intersection(*ran))) if ran else ()
    scored = [name for name, measured in columns.items() if measured]
    items: Sequence[Iterable[Samples]] = [_rows_of(columns[name], rows) for name in scored]
    if metric.comparable is not None:
        items = metric.comparable([[*samples] for samples in items])
    sums = {name: metric.sums_of([]) for name in columns}
    sums |= {name: metric.sums_of(system) for name, system in zip(scored, items, strict=True)}
    groups = [row if clusters[row] is None else clusters[row] for row in rows]
    estimates, differences = compared(metric, sums, groups, baselines)
    per_row: dict[str, Mapping[int, float]] = dict.fromkeys(columns, {})
    for name in scored if metric.is_of_rows and rows else ():
        per_row[name] = dict(zip(rows, map(float, metric.value(sums[name])), strict=True))
    return MetricScores(metric, rows, per_row, estimates, differences)
