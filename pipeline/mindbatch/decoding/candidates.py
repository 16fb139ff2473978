"""Candidates: the tokens that sampling may still choose from, with their scores."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.draw import draw_by_weight
from mindbatch.decoding.softmax import weights_of

_SPARSE_FRACTION = 16
"""Gathering pays once fewer than one score in this many is kept; before that, marking is cheaper."""


class Candidates:
    """Scores [n] in token order, of which some may be filtered out already.

    Weights are relative to the largest score. They outlive every filter that leaves that score, so that the
    exponential, the dearest part of sampling, is taken once.
    """

    __slots__ = ("_mask", "_normaliser", "_scores", "_token_ids", "_weights")

    def __init__(
        self,
        scores: NDArray[np.float32],
        token_ids: NDArray[np.int64] | None = None,
        normaliser: float | None = None,
    ) -> None:
        """`token_ids` [n] names the scores; None means that a score's place is its token.

        `normaliser`, if it is known, is what `likeliest_and_normalisers` gives for the scores.
        """
        self._normaliser = normaliser
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
        shares: NDArray[np.float32] = self.weights / self.weights.sum()  # pairwise, so accurate in float32
        return shares

    @property
    def normaliser(self) -> float:
        """What to subtract from a score to get its log-probability; exact to the seventh digit of a sum."""
        if self._normaliser is None:
            self._normaliser = float(self.scores.max()) + math.log(self.weights.sum())
        return self._normaliser

    def keep(self, mask: NDArray[np.bool_]) -> Candidates:
        """Those where `mask` [n] is true; what was filtered out before stays so."""
        kept = np.count_nonzero(mask)
        if kept == mask.size:
            return self
        weights = self._weights
        if kept * _SPARSE_FRACTION <= mask.size:
            places = np.flatnonzero(mask)
            left = Candidates(self._scores[places], self.tokens(places))
            weights = None if weights is None else weights[places]
        else:
            left = Candidates(self._scores, self._token_ids)
            left._mask = mask
            weights = None if weights is None else weights * mask
        if weights is not None and weights.max() == 1.0:
            left._weights = weights
        return left

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
