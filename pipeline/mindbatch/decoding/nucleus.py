"""Top-p: the nucleus of a distribution, found from a histogram instead of a sorted vocabulary."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.softmax import softmax

_BITS_DROPPED = 18
"""Bits of a float32 left out of its bin: 5 bits of fraction remain, so a bin spans 2 to 3 %."""
_SORTED_AT_MOST = 1024
"""Up to this many scores, sorting them is quicker than a histogram."""


def nucleus(scores: NDArray[np.float32], top_p: float) -> NDArray[np.bool_]:
    """Which of `scores` [n] are left by top-p, 0 < top_p < 1: those outside a tail of probability 1 - top_p.

    As in transformers 4.57: in ascending order a token is removed while the sum of the probabilities up to it
    is at most 1 - top_p; the last token always stays. Among equal scores the earlier place is removed first,
    where PyTorch's unstable sort leaves the choice open.
    Source: Holtzman et al., "The curious case of neural text degeneration", 2020.
    """
    probabilities = softmax(scores)
    tail_limit = np.float32(1.0 - top_p)
    places, tail = _around_the_edge(scores, probabilities, tail_limit)
    near = scores[places]
    order = np.argsort(near, kind="stable")
    removed = _count_removed(probabilities[places[order]], tail, tail_limit)
    edge = near[order[removed]]
    mask: NDArray[np.bool_] = scores > edge
    tied = order[removed:]
    mask[places[tied[near[tied] == edge]]] = True
    return mask


def _around_the_edge(
    scores: NDArray[np.float32], probabilities: NDArray[np.float32], tail_limit: np.float32
) -> tuple[NDArray[np.int64], float]:
    """Places of a run of scores, consecutive in size, that holds the smallest kept; the sum below the run."""
    if scores.size <= _SORTED_AT_MOST:
        return np.arange(scores.size), 0.0
    # The bits of a positive float, read as an integer, order as the float does and grow with its logarithm.
    bins = probabilities.view(np.int32) >> _BITS_DROPPED
    masses = np.bincount(bins.astype(np.int64), weights=probabilities.astype(np.float64))
    edge = _count_removed(masses, 0.0, tail_limit)
    return np.flatnonzero(bins == edge), float(masses[:edge].sum())


def _count_removed(masses: NDArray[Any], tail: float, tail_limit: np.float32) -> int:
    """How many of `masses`, added in turn to `tail`, stay within the limit; the last one never counts.

    The sum is kept in float64 and compared in float32, as PyTorch does on a CPU.
    """
    sums = (tail + np.cumsum(masses, dtype=np.float64)).astype(np.float32)
    within = int(np.searchsorted(sums, tail_limit, side="right"))
    return min(within, masses.size - 1)
