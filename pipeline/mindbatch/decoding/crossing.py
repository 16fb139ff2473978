"""Finds where a sum of weights, in the order of their keys, crosses a limit, without sorting them all."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_STRETCHES, _STRETCH = 128, 8
"""The sample is so many stretches of so many neighbours: each lies in a line or two of the cache."""
_SORTED_AT_MOST = 2048
"""With so few keys, sorting them is quicker than guessing."""
_POOR_ESTIMATE = 0.2
"""An estimate of the whole sum that is wrong by this share lacks a large weight or counts one too often."""
_LARGE_AT_MOST = 1024
"""Weights above one such share of the whole sum are large; there are no more than that."""
_STANDARD_ERRORS = 3.0
"""How sure the search should be of the stretch of keys that it sorts; if that fails, it sorts everything."""


@dataclass(slots=True, frozen=True)
class Crossing:
    """The key at which the limit is crossed, and how many keys equal to it come before that one."""

    key: np.float32
    num_equal_before: int


@dataclass(slots=True, frozen=True)
class Limit:
    """A share of the whole sum `total`, which a sum crosses by exceeding it, or if `reached`, by reaching it.

    Shares are compared in float32, as PyTorch does with sums that it accumulates in float64.
    """

    share: np.float32
    total: float
    reached: bool = False

    def is_crossed(self, weight: float) -> bool:
        """True if a sum of `weight` crosses it."""
        share = np.float32(weight / self.total)
        return bool(share >= self.share if self.reached else share > self.share)

    def num_short(self, sums: NDArray[np.float64]) -> int:
        """Counts those of `sums`, in ascending order, that do not cross it."""
        shares = (sums / self.total).astype(np.float32)
        return int(np.searchsorted(shares, self.share, side="left" if self.reached else "right"))


def crossing(keys: NDArray[np.float32], weights: NDArray[np.float32], limit: Limit) -> Crossing:
    """The first of `keys` [n], in ascending order, at which the sum of `weights` [n] crosses the limit.

    The last key if there is none.
    """
    crossed = _guessed(keys, weights, limit) if keys.size > _SORTED_AT_MOST else None
    crossed = crossed or crossing_after(0.0, keys, weights, limit)
    return crossed or Crossing(keys.max(), np.count_nonzero(keys == keys.max()) - 1)


def crossing_after(
    tail: float, keys: NDArray[np.float32], weights: NDArray[np.float32], limit: Limit
) -> Crossing | None:
    """The crossing among `keys` [n], all of which are sorted, when the sum before them is `tail`.

    None if it is not among them, but before them or after.
    """
    if limit.is_crossed(tail):
        return None
    order = np.argsort(keys)
    place = limit.num_short(tail + np.cumsum(weights[order], dtype=np.float64))
    if place == keys.size:
        return None
    ordered = keys[order]
    return Crossing(ordered[place], place - int(np.searchsorted(ordered, ordered[place])))


def sum_where(weights: NDArray[np.float32], mask: NDArray[np.bool_]) -> float:
    """The sum of the `weights` [n] where `mask` [n] is true."""
    part = mask.astype(np.float32)  # a reduction with `where` takes many times as long
    part *= weights
    return float(part.sum())


def _guessed(keys: NDArray[np.float32], weights: NDArray[np.float32], limit: Limit) -> Crossing | None:
    """The crossing, if it is in the stretch of keys where a sample says that it is.

    The sample gives a pivot; the sum up to there is then computed, and what it misses or exceeds the limit by
    says in turn how far the crossing is from the pivot.
    """
    ordered, sums, squares = _sample(keys, weights, limit.total)
    goal = float(limit.share) * limit.total
    last = ordered.size - 1
    guess = min(int(np.searchsorted(sums, goal)), last)
    up_to_pivot = keys <= ordered[guess]
    below = sum_where(weights, up_to_pivot)
    target = sums[guess] + goal - below
    aim = min(int(np.searchsorted(sums, target)), last)
    doubt = _STANDARD_ERRORS * float(np.sqrt(abs(squares[aim] - squares[guess]))) + abs(goal - below) / 4
    if limit.is_crossed(below):
        start = int(np.searchsorted(sums, target - doubt)) - 1
        places = np.flatnonzero(up_to_pivot & (keys > ordered[start]) if start >= 0 else up_to_pivot)
        near = weights[places]
        tail = below - float(near.sum(dtype=np.float64)) if start >= 0 else 0.0
        return crossing_after(tail, keys[places], near, limit)
    end = int(np.searchsorted(sums, target + doubt)) + 1
    places = np.flatnonzero(~up_to_pivot & (keys <= ordered[end]) if end <= last else ~up_to_pivot)
    return crossing_after(below, keys[places], weights[places], limit)


def _sample(
    keys: NDArray[np.float32], weights: NDArray[np.float32], total: float
) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.float64]]:
    """Some of the keys in ascending order, estimates of the sums up to them, and the variances of these.

    The variance of such a sum is at most the sum of squares. If the sample misses large weights, they are all
    taken in besides, for which they need no estimate.
    """
    sampled, some = _stretches(keys), _stretches(weights)
    shares = some * (keys.size / some.size)
    large = None
    if abs(shares.sum() - total) > _POOR_ESTIMATE * total:
        bound = np.float32(total / _LARGE_AT_MOST)
        large = np.flatnonzero(weights > bound)
        small = some <= bound
        sampled = np.concatenate([sampled[small], keys[large]])
        shares = np.concatenate([shares[small], weights[large]])
    order = np.argsort(sampled)
    squares = shares * shares
    if large is not None:
        squares[squares.size - large.size :] = 0.0
    return (
        sampled[order],
        np.cumsum(shares[order], dtype=np.float64),
        np.cumsum(squares[order], dtype=np.float64),
    )


def _stretches(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The sample of `values` [n]."""
    apart = values.size // _STRETCHES
    return values[: apart * _STRETCHES].reshape(_STRETCHES, apart)[:, :_STRETCH].ravel()
