"""Which tokens sampling may choose from: temperature, top-k, top-p and min-p, in transformers' order.

The rules are those of transformers 4.57 (generation/logits_process.py), without sorting the vocabulary.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.nucleus import nucleus
from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.selection import kth_largest
from mindbatch.decoding.softmax import softmax

_SPARSE_FRACTION = 8
"""Gathering pays once fewer than one score in this many is kept; before that, marking is cheaper."""


@dataclass(slots=True, frozen=True)
class Candidates:
    """Scores [n] of the tokens in question, in token order; minus infinity marks one that is filtered out.

    `token_ids` [n] names them; None means that a score's place is its token.
    """

    scores: NDArray[np.float32]
    token_ids: NDArray[np.int64] | None = None

    def keep(self, mask: NDArray[np.bool_]) -> "Candidates":
        """Those where `mask` [n] is true."""
        kept = np.count_nonzero(mask)
        if kept == mask.size:
            return self
        if kept * _SPARSE_FRACTION > mask.size:
            ceilings = (mask - np.float32(0.5)) * np.float32(np.inf)  # np.where takes ten times as long
            return Candidates(np.minimum(self.scores, ceilings), self.token_ids)
        places = np.flatnonzero(mask)
        return Candidates(self.scores[places], self.tokens(places))

    def tokens(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The tokens at `places`."""
        return places if self.token_ids is None else self.token_ids[places]

    def dense(self, vocabulary_size: int) -> NDArray[np.float32]:
        """Scores [V] over the whole vocabulary, minus infinity for every token not kept."""
        scores = np.full(vocabulary_size, -np.inf, dtype=np.float32)
        scores[slice(None) if self.token_ids is None else self.token_ids] = self.scores
        return scores


def sampling_candidates(scores: NDArray[np.float32], params: DecodingParams) -> Candidates:
    """What is left of `scores` [V] after the filters of `params`; no copy is made when none is active."""
    if params.temperature != 1.0:
        scores = scores / np.float32(params.temperature)
    candidates = Candidates(scores)
    if params.top_k > 0:
        candidates = candidates.keep(top_k_mask(candidates.scores, params.top_k))
    if params.top_p < 1.0:
        candidates = candidates.keep(nucleus(candidates.scores, params.top_p))
    if params.min_p > 0.0:
        candidates = candidates.keep(min_p_mask(candidates.scores, params.min_p))
    return candidates


def top_k_mask(scores: NDArray[np.float32], k: int) -> NDArray[np.bool_]:
    """The k largest of `scores` [n] and all that equal the k-th. Source: Fan, Lewis, Dauphin, 2018."""
    if k >= scores.size:
        return np.ones(scores.size, dtype=np.bool_)
    return scores >= kth_largest(scores, k)


def min_p_mask(scores: NDArray[np.float32], min_p: float) -> NDArray[np.bool_]:
    """Those with at least `min_p` times the largest probability. Source: Nguyen et al., "Min-p", 2024."""
    probabilities = softmax(scores)
    mask: NDArray[np.bool_] = probabilities >= np.float32(min_p) * probabilities.max()
    return mask
