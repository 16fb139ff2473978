"""Where a sum of probabilities, taken in the order of their keys, crosses a limit: without sorting them all."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SAMPLE = 1024
"""Keys that are sorted to guess where the limit lies; with so few keys in all, they are sorted instead."""
_STANDARD_ERRORS = 3.0
"""How sure the guess should be; when it fails, everything is sorted."""


@dataclass(slots=True, frozen=True)
class Crossing:
    """The key at which the limit is crossed, and how many keys equal to it come before that one."""

    key: np.float32
    num_equal_before: int


def crossing(
    keys: NDArray[np.float32], probabilities: NDArray[np.float32], limit: np.float32, *, reached: bool = False
) -> Crossing:
    """The first of `keys` [n], in ascending order, at which the sum of `probabilities` [n] exceeds `limit`.

    With `reached`, that at which it is no longer below the limit. The last key if there is none. Sums are
    float64 and compared in float32, as PyTorch does on a CPU.
    """
    if keys.size > _SAMPLE:
        low, high = _guess(keys, probabilities, float(limit))
        places = np.flatnonzero((keys > low) & (keys <= high))
        tail = (probabilities * (keys <= low)).sum()
        if places.size and _short_of(tail, limit, reached):
            found = _crossing(keys[places], probabilities[places], float(tail), limit, reached)
            if found is not None:
                return found
    found = _crossing(keys, probabilities, 0.0, limit, reached)
    return found or Crossing(keys.max(), np.count_nonzero(keys == keys.max()) - 1)


def _crossing(
    keys: NDArray[np.float32], probabilities: NDArray[np.float32], tail: float, limit: np.float32, reached: bool
) -> Crossing | None:
    """The same among keys whose predecessors sum to `tail`; None if there is none."""
    order = np.argsort(keys)
    sums = (tail + np.cumsum(probabilities[order], dtype=np.float64)).astype(np.float32)
    place = int(np.searchsorted(sums, limit, side="left" if reached else "right"))
    if place == keys.size:
        return None
    ordered = keys[order]
    return Crossing(ordered[place], place - int(np.searchsorted(ordered, ordered[place])))


def _short_of(total: np.float32, limit: np.float32, reached: bool) -> bool:
    return bool(total < limit if reached else total <= limit)


def _guess(
    keys: NDArray[np.float32], probabilities: NDArray[np.float32], limit: float
) -> tuple[np.float32, np.float32]:
    """Keys between which the limit is very likely crossed, from a sample of every so many.

    The standard error of a sum over a sample is at most the root of the sum of squares.
    """
    stride = keys.size // _SAMPLE
    sample = keys[::stride]
    order = np.argsort(sample)
    parts = stride * probabilities[::stride][order].astype(np.float64)
    sums = np.cumsum(parts)
    errors = _STANDARD_ERRORS * np.sqrt(np.cumsum(parts * parts))
    below = int(np.searchsorted(sums + errors, limit))
    above = np.flatnonzero(sums - errors > limit)
    low = sample[order[below - 1]] if below else np.float32(-np.inf)
    high = sample[order[above[0]]] if above.size else np.float32(np.inf)
    return low, high
