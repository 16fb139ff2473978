"""Candidates: the tokens that sampling may still choose from, with their scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.draw import draw_by_weight
from mindbatch.decoding.softmax import weights_of

_SPARSE_FRACTION = 16
"""Gathering pays once fewer than one score in this many is kept; before that, marking is cheaper."""


class Candidates:
    """Scores [n] in token order, of which some may be filtered out already.

    A filter never takes away the largest score, so the weights, which are relative to it, outlive filters:
    the exponential, the dearest part of sampling, is taken once.
    """

    __slots__ = ("_mask", "_scores", "_token_ids", "_weights")

    def __init__(self, scores: NDArray[np.float32], token_ids: NDArray[np.int64] | None = None) -> None:
        """`token_ids` [n] names the scores; None means that a score's place is its token."""
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
        """Probabilities [n]."""
        return self.weights / self.weights.sum()  # a pairwise sum, so accurate in float32

    def keep(self, mask: NDArray[np.bool_]) -> Candidates:
        """Those where `mask` [n] is true, the largest among them; none of them has been filtered out before."""
        kept = np.count_nonzero(mask)
        if kept == mask.size:
            return self
        if kept * _SPARSE_FRACTION <= mask.size:
            return self._at(np.flatnonzero(mask))
        marked = Candidates(self._scores, self._token_ids)
        marked._mask = mask
        if self._weights is not None:
            marked._weights = self._weights * mask
        return marked

    def tokens(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The tokens at `places`."""
        return places if self._token_ids is None else self._token_ids[places]

    def draw(self, uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """Tokens [m] drawn with their probabilities at `uniforms` [m]; see `draw.draw`."""
        return self.tokens(draw_by_weight(self.weights, uniforms))

    def dense(self, vocabulary_size: int) -> NDArray[np.float32]:
        """Scores [V] over the whole vocabulary, minus infinity for every token not kept."""
        scores = np.full(vocabulary_size, -np.inf, dtype=np.float32)
        scores[slice(None) if self._token_ids is None else self._token_ids] = self.scores
        return scores

    def _at(self, places: NDArray[np.int64]) -> Candidates:
        few = Candidates(self._scores[places], self.tokens(places))
        if self._weights is not None:
            few._weights = self._weights[places]
        return few
