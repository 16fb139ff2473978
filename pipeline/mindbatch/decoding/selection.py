"""Selecting the largest of a vocabulary's scores without sorting them."""

import numpy as np
from numpy.typing import NDArray

_GROUPS_PER_KEPT = 8
"""More groups let fewer scores through the bound, but cost more to look through."""
_SCORES_PER_GROUP = 4
"""With fewer scores in a group, the bound saves nothing over selecting among all of them."""


def kth_largest(scores: NDArray[np.float32], k: int) -> np.float32:
    """The k-th largest of `scores` [n], 1 <= k <= n, counting equal ones each.

    At least k groups hold a score no smaller than the k-th largest of all groups' maxima, so no score below
    that bound can be among the k largest: only the few above it are looked at in turn.
    """
    groups = _GROUPS_PER_KEPT * k
    if groups * _SCORES_PER_GROUP <= scores.size:
        whole = scores.size - scores.size % groups
        maxima = scores[:whole].reshape(-1, groups).max(axis=0)
        scores = scores[scores >= _kth_of_all(maxima, k)]
    return _kth_of_all(scores, k)


def largest(scores: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Places of the k largest of `scores` [n], all if k > n, largest first; the lower place among equals."""
    k = min(k, scores.size)
    if k == 0:
        return np.empty(0, dtype=np.int64)
    places = np.flatnonzero(scores >= kth_largest(scores, k))
    return places[np.argsort(-scores[places], kind="stable")][:k]


def _kth_of_all(scores: NDArray[np.float32], k: int) -> np.float32:
    kth: np.float32 = np.partition(scores, scores.size - k)[scores.size - k]
    return kth
