"""Candidates: the tokens that sampling may still choose from; and drawing at given uniform numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.softmax import weights_of

_BLOCK = 256
"""Scores summed as one: the running sum, which is slow, then runs over blocks and inside one of them."""
_NEARLY_NOTHING = 1e-20
"""A sum of weights, of which the largest was 1, that is too small for float32: they are then taken anew."""
_SPARSE_FRACTION = 16
"""Gathering pays once fewer than one score in this many is kept; before that, marking is cheaper."""


class Candidates:
    """Scores [n] in token order, of which some may be filtered out already.

    Weights are relative to the largest score. They outlive every filter that leaves that score, so that the
    exponential, the dearest part of sampling, is taken once.
    """

    __slots__ = ("_mask", "_scores", "_token_ids", "_weights")

    def __init__(self, scores: NDArray[np.float32], token_ids: NDArray[np.int64] | None = None) -> None:
        """`token_ids` [n]: the tokens of the scores; None if a score's index is its token."""
        self._scores = scores
        self._token_ids = token_ids
        self._mask: NDArray[np.bool_] | None = None
        self._weights: NDArray[np.float32] | None = None

    @property
    def scores(self) -> NDArray[np.float32]:
        """Scores [n]; minus infinity marks one that is filtered out."""
        if self._mask is not None:
            ceilings = (self._mask - np.float32(0.5)) * np.float32(np.inf)  # np.where takes ten times as long
            self._scores, self._mask = np.minimum(self._scores, ceilings), None
        return self._scores

    @property
    def weights(self) -> NDArray[np.float32]:
        """Probabilities [n] up to a common factor; the largest is 1 and what is filtered out has 0."""
        if self._weights is None:
            self._weights = weights_of(self.scores)
        return self._weights

    @property
    def probabilities(self) -> NDArray[np.float32]:
        shares: NDArray[np.float32] = self.weights / self.weights.sum()  # pairwise, so accurate in float32
        return shares

    def keep(self, mask: NDArray[np.bool_]) -> Candidates:
        """Keeps those where `mask` [n] is true; what was filtered out before stays so."""
        kept = np.count_nonzero(mask)
        if kept == mask.size:
            return self
        weights = self._weights
        if kept * _SPARSE_FRACTION <= mask.size:
            indices = np.flatnonzero(mask)
            left = Candidates(self._scores[indices], self.tokens(indices))
            weights = None if weights is None else weights[indices]
        else:
            left = Candidates(self._scores, self._token_ids)
            left._mask = mask
            weights = None if weights is None else weights * mask
        # Without the largest score the weights would be relative to one that is gone; they are taken anew
        # then.
        if weights is not None and weights.max() == 1.0:
            left._weights = weights
        return left

    def tokens(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return indices if self._token_ids is None else self._token_ids[indices]

    def draw(self, uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """Tokens [m] drawn with their probabilities at `uniforms` [m]; see `draw_by_weight`."""
        return self.tokens(draw_by_weight(self.weights, uniforms))

    def dense(self, vocabulary_size: int) -> NDArray[np.float32]:
        """Scores [V] over the whole vocabulary, minus infinity for every token not kept."""
        scores = np.full(vocabulary_size, -np.inf, dtype=np.float32)
        scores[slice(None) if self._token_ids is None else self._token_ids] = self.scores
        return scores


def draw_by_weight(weights: NDArray[np.float32], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
    """Places in `weights` [n], probabilities up to a common factor, at `uniforms` [m] in [0, 1): [m].

    A uniform number u takes the first index at which the cumulative probability, in that order, exceeds u.
    A weight of 0 is never taken; one must be above it.
    """
    sums = np.cumsum(_block_masses(weights))
    # u < 1 keeps a target below the last sum, so that a block is always found, and one with weight in it.
    targets = uniforms * sums[-1]
    blocks = np.searchsorted(sums, targets, side="right")
    rests = targets - np.concatenate([[0.0], sums])[blocks]
    indices = [
        _crossing_index(weights, block * _BLOCK, rest) for block, rest in zip(blocks, rests, strict=True)
    ]
    return np.array(indices, dtype=np.int64)


def draw_without_replacement(scores: NDArray[np.float32], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
    """Places in `scores` [n] drawn in turn, each with its softmax probability among those not drawn yet.

    One index for each of `uniforms` [m] in [0, 1), all different: [m], or as many as there are finite scores
    if these are fewer.
    """
    indices: list[int] = []
    weights, masses = np.zeros(scores.size, dtype=np.float32), np.zeros(1)
    for number in uniforms:
        if masses.sum() < _NEARLY_NOTHING:
            left = scores.copy()
            left[indices] = -np.inf
            if left.max(initial=-np.inf) == -np.inf:
                break
            weights = weights_of(left)
            masses = _block_masses(weights)
        sums = np.cumsum(masses)
        target = number * sums[-1]
        block = int(np.searchsorted(sums, target, side="right"))
        index = _crossing_index(weights, block * _BLOCK, target - (sums[block - 1] if block else 0.0))
        indices.append(index)
        weights[index] = 0.0
        # Summed anew and not reduced: a difference would leave a rounding error where nothing is left.
        masses[block] = weights[block * _BLOCK : (block + 1) * _BLOCK].sum(dtype=np.float64)
    return np.array(indices, dtype=np.int64)


def _block_masses(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.add.reduceat(weights, np.arange(0, weights.size, _BLOCK)).astype(np.float64)


def _crossing_index(weights: NDArray[np.float32], start: int, rest: float) -> int:
    """Returns the first index in the block at `start` where the block's cumulative weight exceeds `rest`."""
    block = weights[start : start + _BLOCK]
    inside = int(np.searchsorted(np.cumsum(block, dtype=np.float64), rest, side="right"))
    if inside == block.size:  # `rest` was rounded up past the block's end
        inside = int(np.flatnonzero(block)[-1])
    return start + inside
