"""Probabilities and their logarithms from logits, in float32 as transformers computes them."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mindbatch.io.errors import ConfigError
from mindbatch.kernels.native_library import NativeLibrary, find_library

Summary = NDArray[np.float32] | None
"""Summary of logits, what else a head knows of them: see `kernels.step.Logits`."""
_SCORES_AT_ONCE = 1 << 16
"""Scores worked on together (256 KB): they stay in a core's second-level cache."""
_LOWEST_SHIFTED = np.float32(-200.0)
"""Below the logarithm of the smallest float32, so that its exponential is 0."""


@lru_cache(maxsize=1)
def kernels_library() -> NativeLibrary | None:
    """Returns the C++ kernels, if they are built."""
    try:
        return find_library()
    except ConfigError:  # built from other sources, which is an error where its kernels are requested
        return None


def exponential(x: NDArray[np.float32] | np.float32) -> NDArray[np.float32]:
    """Computes e^x in float64, rounded once: the digits of NumPy's in float32 depend on the processor."""
    return np.asarray(np.exp(x, dtype=np.float64), np.float32)


def logarithm(x: NDArray[np.float32] | np.float32) -> NDArray[np.float32]:
    """Computes the natural logarithm as `exponential` does its inverse."""
    return np.asarray(np.log(x, dtype=np.float64), np.float32)


def softmax(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Probabilities of `scores` [n]; minus infinity has probability zero, and one score must be finite."""
    weights = weights_of(scores)
    weights /= weights.sum()  # pairwise, so accurate in float32
    return weights


def weights_of(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Probabilities of `scores` [n] up to a common factor; the largest is 1."""
    return exponential(scores - scores.max())


def entropy(scores: NDArray[np.float32], weights: NDArray[np.float32]) -> np.float32:
    """Returns the entropy (nats) of the distribution with `scores` [n], whose `weights_of` are `weights`
    [n]."""
    total = weights.sum()
    # Where a weight is 0 the score may be minus infinity; any finite number instead adds nothing.
    shifted = np.maximum(scores - scores.max(), _LOWEST_SHIFTED)
    return np.float32(logarithm(total) - (shifted * weights).sum() / total)


def likeliest_and_normalisers(
    logits: NDArray[np.float32], summary: Summary = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Returns the index of each row's largest logit, the lowest among equals, and the row's normaliser: [S]
    and [S].

    A normaliser is what to subtract from logits to get log-probabilities; a row with NaN or plus infinity has
    NaN. A row's results do not depend on the others. By the C++ kernels where they are built, on all their
    threads: NumPy takes two to four times as long for the same numbers, but for the last bits of normalisers.

    summary: of the logits; with or without, the results are the same.
    """
    library = kernels_library()
    if library is None:
        return likeliest_by_numpy(logits)
    indices, normalisers = np.empty(len(logits), dtype=np.int64), np.empty(len(logits), dtype=np.float64)
    library.likeliest(np.ascontiguousarray(logits), summary, indices, normalisers)
    return indices, normalisers


def likeliest_by_numpy(logits: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Computes `likeliest_and_normalisers` without the kernels.

    Both at once, a few rows at a time, fetch the logits [S, V] from memory once instead of twice.
    """
    count, size = logits.shape
    best = np.empty(count, dtype=np.int64)
    maxima, sums = np.empty(count, dtype=np.float32), np.empty(count, dtype=np.float32)
    at_once = max(1, _SCORES_AT_ONCE // size)
    space = np.empty((min(at_once, count), size), dtype=np.float32)
    with np.errstate(invalid="ignore"):
        for start in range(0, count, at_once):
            rows = slice(start, start + at_once)
            block = logits[rows]
            likeliest = block.argmax(axis=1, out=best[rows])
            maxima[rows] = block[np.arange(len(block)), likeliest]
            shifted = np.subtract(block, maxima[rows, np.newaxis], out=space[: len(block)])
            np.exp(shifted, out=shifted).sum(axis=1, out=sums[rows])
    return best, maxima + np.log(sums, dtype=np.float64)


_GROUPS = 1024
"""Number of groups that the scores are divided into. More let fewer scores through the bound but cost more to
look at."""
_GROUPS_PER_KEPT = 8
"""At least so many groups for each score that is wanted."""
_SCORES_PER_GROUP = 4
"""With fewer scores in a group, the bound saves nothing over selecting among all of them."""


def kth_largest(scores: NDArray[np.float32], k: int) -> np.float32:
    """Returns the k-th largest of `scores` [n], counting equal ones each; the smallest if k > n."""
    k = min(k, scores.size)
    return _kth_of_all(scores[scores >= _bound(scores, k)], k)


def largest(scores: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Indices of the k largest of `scores` [n], all if k > n, largest first; the lower index among equals."""
    k = min(k, scores.size)
    if k == 0:
        return np.empty(0, dtype=np.int64)
    indices = np.flatnonzero(scores >= _bound(scores, k))
    if indices.size > k:  # of those that equal the k-th not all are wanted, and there may be very many
        near = scores[indices]
        kth = _kth_of_all(near, k)
        above = indices[near > kth]
        indices = np.concatenate([above, indices[near == kth][: k - above.size]])
    return indices[np.argsort(-scores[indices], kind="stable")]


def _bound(scores: NDArray[np.float32], k: int) -> np.float32:
    """Returns a score below which none of the k largest is.

    At least k groups hold a score no smaller than the k-th largest of all groups' maxima, so that is one, and
    only the few above it need be looked at in turn.
    """
    groups = max(_GROUPS, _GROUPS_PER_KEPT * k)
    if groups * _SCORES_PER_GROUP > scores.size:
        return _kth_of_all(scores, k)
    whole = scores.size - scores.size % groups
    return _kth_of_all(scores[:whole].reshape(-1, groups).max(axis=0), k)


def _kth_of_all(scores: NDArray[np.float32], k: int) -> np.float32:
    kth: np.float32 = np.partition(scores, scores.size - k)[scores.size - k]
    return kth
