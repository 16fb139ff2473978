"""Scores of several columns by several metrics, over the same rows, and how they differ from a baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from mindbatch.evaluation.scoring.chance import Clusters, Difference, Estimate, difference, estimate, holm
from mindbatch.evaluation.scoring.metric import FloatArray, Metric, Row


@dataclass(frozen=True)
class MetricScores:
    """One metric of all columns.

    rows: the numbers of the questions that every column has, which alone are counted; but for columns without
    any, of which nothing is scored.
    per_row: each column's score of each of these rows, where the metric has such.
    differences: of every column but the baseline, with p-values adjusted for their number.
    """

    metric: Metric[Any]
    rows: tuple[int, ...]
    per_row: Mapping[str, Sequence[float]]
    estimates: Mapping[str, Estimate]
    differences: Mapping[str, Difference]

    def of_row(self, column: str, row: int) -> float | None:
        """A column's score of a question; None where the question is not counted."""
        place = self._places.get(row)
        scores = self.per_row[column]
        return None if place is None or not scores else scores[place]

    @property
    def unscored(self) -> list[str]:
        """The columns of which nothing is scored."""
        return [name for name, estimated in self.estimates.items() if not estimated.num_rows]

    @cached_property
    def _places(self) -> Mapping[int, int]:
        return {row: place for place, row in enumerate(self.rows)}


def scores_of(
    metric: Metric[Any],
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
    groups = Clusters([row if clusters[row] is None else clusters[row] for row in rows])
    estimates = {name: estimate(metric, rows_sums, groups) for name, rows_sums in sums.items()}
    differences = {
        name: difference(metric, rows_sums, sums[baseline], groups)
        for name, rows_sums in sums.items()
        if name != baseline and len(rows_sums) and len(sums[baseline])
    }
    adjusted = holm({name: compared.p_value for name, compared in differences.items()})
    return MetricScores(
        metric,
        rows,
        {name: _per_row(metric, rows_sums) for name, rows_sums in sums.items()},
        estimates,
        {name: replace(compared, adjusted=adjusted[name]) for name, compared in differences.items()},
    )


def _per_row(metric: Metric[Any], sums: FloatArray) -> list[float]:
    return [float(value) for value in metric.value(sums)] if len(sums) and metric.is_of_rows else []
