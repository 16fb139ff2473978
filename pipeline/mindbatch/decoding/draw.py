"""Drawing from a distribution at given uniform numbers, with and without replacement."""

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.softmax import weights_of

_BLOCK = 256
"""Scores summed as one: the running sum, which is slow, then runs over blocks and inside one of them."""
_NEARLY_NOTHING = 1e-20
"""A sum of weights, of which the largest was 1, that is too small for float32: they are then taken anew."""


def draw(scores: NDArray[np.float32], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
    """Places in `scores` [n], each drawn with its softmax probability, at `uniforms` [m] in [0, 1): [m].

    A uniform number u takes the first place at which the cumulative probability, in that order, exceeds u.
    A score of minus infinity is never taken; one score must be finite.
    """
    return draw_by_weight(weights_of(scores), uniforms)


def draw_by_weight(weights: NDArray[np.float32], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
    """As `draw`, from `weights` [n]: probabilities up to a common factor, one of them above 0."""
    sums = np.cumsum(_block_masses(weights))
    # u < 1 keeps a target below the last sum, so that a block is always found, and one with weight in it.
    targets = uniforms * sums[-1]
    blocks = np.searchsorted(sums, targets, side="right")
    rests = targets - np.concatenate([[0.0], sums])[blocks]
    places = [_place_in(weights, block * _BLOCK, rest) for block, rest in zip(blocks, rests, strict=True)]
    return np.array(places, dtype=np.int64)


def draw_without_replacement(scores: NDArray[np.float32], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
    """Places in `scores` [n] drawn in turn, each with its softmax probability among those not drawn yet.

    One place for each of `uniforms` [m] in [0, 1), all different: [m], or as many as there are finite scores
    if these are fewer.
    """
    places: list[int] = []
    weights, masses = np.zeros(scores.size, dtype=np.float32), np.zeros(1)
    for number in uniforms:
        if masses.sum() < _NEARLY_NOTHING:
            left = scores.copy()
            left[places] = -np.inf
            if left.max(initial=-np.inf) == -np.inf:
                break
            weights = weights_of(left)
            masses = _block_masses(weights)
        sums = np.cumsum(masses)
        target = number * sums[-1]
        block = int(np.searchsorted(sums, target, side="right"))
        place = _place_in(weights, block * _BLOCK, target - (sums[block - 1] if block else 0.0))
        places.append(place)
        weights[place] = 0.0
        masses[block] = weights[block * _BLOCK : (block + 1) * _BLOCK].sum(dtype=np.float64)
    return np.array(places, dtype=np.int64)


def _block_masses(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """The sum of each block of `weights`."""
    return np.add.reduceat(weights, np.arange(0, weights.size, _BLOCK)).astype(np.float64)


def _place_in(weights: NDArray[np.float32], start: int, rest: float) -> int:
    """The first place in the block at `start` where the block's cumulative weight exceeds `rest`."""
    block = weights[start : start + _BLOCK]
    inside = int(np.searchsorted(np.cumsum(block, dtype=np.float64), rest, side="right"))
    if inside == block.size:  # `rest` was rounded up past the block's end
        inside = int(np.flatnonzero(block)[-1])
    return start + inside
