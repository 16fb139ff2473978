"""Uncertainty of scores: intervals, and p-values of differences between systems on the same rows."""

import math
from collections.abc import Hashable, Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from mindbatch.evaluation.metric import DoubleArray, Metric

SAMPLES = 2000
CONFIDENCE = 0.95
SIGNIFICANCE = 0.05
POWER = 0.8
"""Probability with which a true difference is to be found."""
FEWEST_CLUSTERS = 5
"""With fewer there are so few different resamples that an interval would say nothing."""
FEWEST_DIFFERING = 4
"""Clusters that are not all alike: resamples of fewer say nothing either."""
_SEED = 20240117
_MAX_AT_ONCE = 1 << 22  # numbers of a block of resamples


class Interval(NamedTuple):
    """Ends between which a score lies with CONFIDENCE."""

    low: float
    high: float


def sums_of_clusters(rows: DoubleArray, clusters: Sequence[Hashable]) -> DoubleArray:
    """Adds the rows [rows, k] of each cluster, which are resampled together, to sums [clusters, k].

    They are no independent questions: turns of a chat, say. Cameron, Gelbach, Miller 2008, "Bootstrap-based
    improvements for inference with clustered errors" (the pairs cluster bootstrap).
    """
    numbers: dict[Hashable, int] = {}
    cluster_of_row = [numbers.setdefault(cluster, len(numbers)) for cluster in clusters]
    total = np.zeros((len(numbers), rows.shape[1]))
    np.add.at(total, cluster_of_row, rows)
    return total


def resampled(metric: Metric, systems: Sequence[DoubleArray]) -> DoubleArray:
    """Returns the values [systems, SAMPLES] of the same resamples of clusters; none of too few.

    systems: the sums of each, [clusters, k]. The draws depend on the number of clusters alone.
    """
    num_clusters = len(systems[0])
    if num_clusters < FEWEST_CLUSTERS:
        return np.zeros((len(systems), 0))
    draw = np.random.Generator(np.random.PCG64([_SEED, num_clusters]))
    block = max(1, _MAX_AT_ONCE // num_clusters)
    values = []
    for first in range(0, SAMPLES, block):
        drawn = draw.integers(0, num_clusters, (min(block, SAMPLES - first), num_clusters))
        values.append([metric.value(sums[drawn].sum(axis=1)) for sums in systems])
    return np.concatenate(values, axis=1)


def spread(values: DoubleArray, clusters: DoubleArray) -> tuple[float | None, Interval | None]:
    """Standard deviation and CONFIDENCE interval of the resampled values that are finite.

    clusters: the sums that were resampled, [clusters, k]. None where too few of them differ.
    """
    finite = values[np.isfinite(values)]
    alike = np.unique(clusters, axis=0, return_counts=True)[1].max(initial=0)
    if len(finite) < 2 or len(clusters) - alike < FEWEST_DIFFERING:
        return None, None
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(finite, [tail, 100 - tail])
    return float(finite.std(ddof=1)), Interval(float(low), float(high))


def wilson(share: float, num_rows: float) -> Interval:
    """Computes Wilson's interval of a share of rows, which has a width where none or all are right, too.

    Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    z = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2)
    centre = (share + z * z / (2 * num_rows)) / (1 + z * z / num_rows)
    half = z / (1 + z * z / num_rows)
    half *= math.sqrt(share * (1 - share) / num_rows + z * z / (4 * num_rows * num_rows))
    return Interval(max(0.0, centre - half), min(1.0, centre + half))


def share_interval(rows: DoubleArray, num_clusters: int, stderr: float) -> Interval:
    """Wilson's interval for as many independent rows as would have this standard error.

    They are the rows themselves where each is a question of its own. Korn and Graubard 1998, "Confidence
    intervals for proportions with small expected number of positive counts estimated from survey data".
    """
    right, num_samples = map(float, rows.sum(axis=0))
    share, num_rows = right / num_samples, float(num_clusters)
    if stderr and num_samples != num_clusters:
        num_rows = min(share * (1 - share) / stderr**2, num_samples)
    return wilson(share, num_rows)


def paired_interval(system: DoubleArray, base: DoubleArray) -> Interval:
    """Computes Newcombe's interval of the difference of two shares of the same rows, each 0 or 1.

    Newcombe 1998, "Improved confidence intervals for the difference between binomial proportions based on
    paired data", method 10: Wilson's intervals of both, and their correlation.
    """
    num_rows = len(system)
    share, other = float(system.mean()), float(base.mean())
    (low, high), (other_low, other_high) = wilson(share, num_rows), wilson(other, num_rows)
    variances = share * (1 - share) * other * (1 - other)
    covariance = float((system * base).mean()) - share * other
    if covariance > 0:
        covariance = max(0.0, covariance - 0.5 / num_rows)
    correlation = covariance / math.sqrt(variances) if variances else 0.0

    def distance(own: float, others: float) -> float:
        return math.sqrt(max(0.0, own * own - 2 * correlation * own * others + others * others))

    return Interval(
        share - other - distance(share - low, other_high - other),
        share - other + distance(high - share, other - other_low),
    )


def smallest_difference(stderr: float) -> float:
    """Computes the difference that a two-sided test at 1 - CONFIDENCE finds with POWER.

    stderr: of a paired difference. Miller 2024, "Adding error bars to evals", section 5.
    """
    quantile = NormalDist().inv_cdf
    return (quantile(1 - (1 - CONFIDENCE) / 2) + quantile(POWER)) * stderr


def rows_needed(stderr: float, num_rows: int, difference: float) -> int:
    """Estimates the rows that would show a difference, from the standard error of `num_rows` rows."""
    return math.ceil(num_rows * (smallest_difference(stderr) / difference) ** 2)


def randomized(metric: Metric, system: DoubleArray, base: DoubleArray) -> float | None:
    """Computes the two-sided p-value of a difference between two systems, by their sums [clusters, k].

    Systems that do not differ may exchange what they made of a cluster: the p-value is the share of random
    exchanges whose difference is as large. So few clusters are never beyond chance, however alike they are.
    None of fewer than FEWEST_CLUSTERS. Noreen 1989, "Computer-intensive methods for testing hypotheses".
    """
    num_clusters = len(system)
    value = metric.value(system.sum(axis=0)) - metric.value(base.sum(axis=0))
    if num_clusters < FEWEST_CLUSTERS or not math.isfinite(value):
        return None
    draw = np.random.Generator(np.random.PCG64([_SEED, num_clusters, 1]))
    block, beyond = max(1, _MAX_AT_ONCE // num_clusters), 0
    for first in range(0, SAMPLES, block):
        exchanged = draw.integers(0, 2, (min(block, SAMPLES - first), num_clusters)) @ (base - system)
        differences = metric.value(system.sum(axis=0) + exchanged) - metric.value(
            base.sum(axis=0) - exchanged
        )
        beyond += int((np.abs(differences) >= abs(value) - 1e-12).sum())
    return (beyond + 1) / (SAMPLES + 1)


def mcnemar(gained: int, lost: int) -> float:
    """Computes the two-sided p-value of the exact test: how likely so uneven a split of n changed rows is.

    McNemar 1947, with the binomial distribution of 1/2 instead of its approximation by chi-square.
    """
    num_changed, fewer = gained + lost, min(gained, lost)
    if gained == lost:
        return 1.0

    def log_choices(chosen: int) -> float:
        return math.lgamma(num_changed + 1) - math.lgamma(chosen + 1) - math.lgamma(num_changed - chosen + 1)

    log_total = num_changed * math.log(2)
    return min(1.0, 2 * math.fsum(math.exp(log_choices(chosen) - log_total) for chosen in range(fewer + 1)))


def holm(p_values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Adjusts p-values for their number, so that one mistake among all of them is SIGNIFICANCE likely.

    Holm 1979, "A simple sequentially rejective multiple test procedure". None stays None and does not count.
    """
    known = sorted((value, name) for name, value in p_values.items() if value is not None)
    adjusted: dict[str, float | None] = dict.fromkeys(p_values)
    largest = 0.0
    for rank, (value, name) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * value))
        adjusted[name] = largest
    return adjusted
