"""Tests whether two systems differ on the same rows by more than chance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mindbatch.evaluation.scoring.bootstrap import (
    FEWEST_CLUSTERS,
    Clusters,
    Interval,
    deviation,
    percentiles,
    resampled,
)
from mindbatch.evaluation.scoring.metric import FloatArray, Metric

SIGNIFICANCE = 0.05


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
        """True if the difference is larger than noise."""
        p_value = self.p_value if self.adjusted is None else self.adjusted
        return p_value is not None and p_value < SIGNIFICANCE


def difference(metric: Metric[Any], system: FloatArray, base: FloatArray, clusters: Clusters) -> Difference:
    """Compares two systems by the sums [rows, k] of the same rows in the same order.

    Rows that are right or wrong, one sample of each and no clusters: McNemar's exact test. Else the paired
    bootstrap:
    Efron and Tibshirani 1993, chapter 16: resampled differences, centred on 0, are those of no difference.
    """
    value = float(metric.value(system.sum(axis=0)) - metric.value(base.sum(axis=0)))
    gained, lost = _changes(metric, system, base)
    resamples = None
    if clusters.count >= FEWEST_CLUSTERS:
        mine, theirs = resampled(metric, [clusters.sums(system), clusters.sums(base)])
        resamples = mine - theirs
    interval = None if resamples is None else percentiles(resamples)
    stderr = None if resamples is None else deviation(resamples)
    if gained is not None and lost is not None and clusters.count == len(system):
        p_value: float | None = mcnemar(gained, lost)
        return Difference(value, interval, p_value, "mcnemar", gained, lost, stderr=stderr)
    p_value = None if resamples is None else _bootstrap_p(value, resamples)
    return Difference(value, interval, p_value, "bootstrap", gained, lost, stderr=stderr)


def mcnemar(gained: int, lost: int) -> float:
    """The two-sided p-value of the exact test: of n rows that changed, how likely is a split so uneven.

    McNemar 1947, with the binomial distribution of 1/2 instead of its approximation by chi-square.
    """
    from scipy.stats import binomtest

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


def _changes(metric: Metric[Any], system: FloatArray, base: FloatArray) -> tuple[int | None, int | None]:
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
