"""Drawing from a distribution: the inverse of its cumulative sum, at given uniform numbers."""

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.softmax import weights_of

_BLOCK = 256
"""Scores summed as one: the running sum, which is slow, then runs over blocks and inside one of them."""


def draw(scores: NDArray[np.float32], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
    """Places in `scores` [n], each drawn with its softmax probability, at `uniforms` [m] in [0, 1): [m].

    A uniform number u takes the first place at which the cumulative probability, in that order, exceeds u.
    A score of minus infinity is never taken; one score must be finite.
    """
    weights = weights_of(scores)
    sums = np.cumsum(np.add.reduceat(weights, np.arange(0, weights.size, _BLOCK), dtype=np.float64))
    # u < 1 keeps a target below the last sum, so that a block is always found, and one with weight in it.
    targets = uniforms * sums[-1]
    blocks = np.searchsorted(sums, targets, side="right")
    rests = targets - np.concatenate([[0.0], sums])[blocks]
    places = [_place_in(weights, block * _BLOCK, rest) for block, rest in zip(blocks, rests, strict=True)]
    return np.array(places, dtype=np.int64)


def _place_in(weights: NDArray[np.float32], start: int, rest: float) -> int:
    """The first place in the block at `start` where the block's cumulative weight exceeds `rest`."""
    block = weights[start : start + _BLOCK]
    inside = int(np.searchsorted(np.cumsum(block, dtype=np.float64), rest, side="right"))
    if inside == block.size:  # `rest` was rounded up past the block's end
        inside = int(np.flatnonzero(block)[-1])
    return start + inside
