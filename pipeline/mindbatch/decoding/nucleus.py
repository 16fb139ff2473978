"""Top-p: the nucleus of a distribution, found without sorting the vocabulary."""

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.candidates import Candidates
from mindbatch.decoding.crossing import Crossing, Limit, crossing, crossing_after, sum_where
from mindbatch.decoding.selection import largest

_LIKELY = 1 / 4096
"""Tokens above this share of the tail's probability count as likely; the others are often within the tail."""
_PEAKED = 0.004
"""From this probability of the likeliest token on, the likely tokens may well hold the nucleus."""


def nucleus(candidates: Candidates, top_p: float, least: int = 1) -> NDArray[np.bool_]:
    """Which candidates [n] are left by top-p, 0 < top_p < 1: those outside a tail of probability 1 - top_p.

    As in transformers 4.57: in ascending order a token is removed while the sum of the probabilities up to it
    is at most 1 - top_p; the last `least` tokens always stay. Among equal scores the earlier place is removed
    first, where PyTorch's unstable sort leaves the choice open.
    Source: Holtzman et al., "The curious case of neural text degeneration", 2020.
    """
    scores, weights = candidates.scores, candidates.weights
    limit = Limit(np.float32(1.0 - top_p), float(weights.sum()))
    mask = _among_the_likely(scores, weights, limit)
    if mask is None:
        mask = _from(crossing(scores, weights, limit), scores)
    if least > 1:
        mask[scores.size - 1 - largest(scores[::-1], least)] = True
    return mask


def _among_the_likely(
    scores: NDArray[np.float32], weights: NDArray[np.float32], limit: Limit
) -> NDArray[np.bool_] | None:
    """The nucleus of a distribution so peaked that a few likely tokens hold it; None if they do not."""
    if limit.total * _PEAKED > 1.0:  # the largest weight is 1
        return None
    likely = weights > np.float32(limit.total * limit.share * _LIKELY)
    places = np.flatnonzero(likely)
    if weights[places].sum() < (1.0 - limit.share) * limit.total:
        return None
    tail, scores = sum_where(weights, ~likely), scores[places]
    edge = crossing_after(tail, scores, weights[places], limit)
    if edge is None:
        return None
    likely[places] = _from(edge, scores)
    return likely


def _from(edge: Crossing, scores: NDArray[np.float32]) -> NDArray[np.bool_]:
    """The scores that are not before the crossing."""
    mask: NDArray[np.bool_] = scores >= edge.key
    if edge.num_equal_before:
        mask[np.flatnonzero(scores == edge.key)[: edge.num_equal_before]] = False
    return mask
