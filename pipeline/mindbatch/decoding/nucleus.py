"""Top-p: the nucleus of a distribution, found without sorting the vocabulary."""

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.candidates import Candidates
from mindbatch.decoding.crossing import Crossing, Limit, crossing, crossing_after
from mindbatch.decoding.selection import largest

_LIKELY_AT_MOST = 4096
"""Tokens above one such share of the whole probability count as likely; there are no more than that."""


def nucleus(candidates: Candidates, top_p: float, least: int = 1) -> NDArray[np.bool_]:
    """Which candidates [n] are left by top-p, 0 < top_p < 1: those outside a tail of probability 1 - top_p.

    As in transformers 4.57: in ascending order a token is removed while the sum of the probabilities up to it
    is at most 1 - top_p; the last `least` tokens always stay. Among equal scores the earlier place is removed
    first, where PyTorch's unstable sort leaves the choice open.
    Source: Holtzman et al., "The curious case of neural text degeneration", 2020.
    """
    scores, weights = candidates.scores, candidates.weights
    mask = _among_the_likely(scores, weights, top_p)
    if mask is None:
        mask = _from(crossing(scores, weights, 1.0 - top_p), scores)
    if least > 1:
        mask[scores.size - 1 - largest(scores[::-1], least)] = True
    return mask


def _among_the_likely(
    scores: NDArray[np.float32], weights: NDArray[np.float32], top_p: float
) -> NDArray[np.bool_] | None:
    """The nucleus of a distribution that is peaked, so that the few likely tokens hold it; None if it is not."""
    limit = Limit(np.float32(1.0 - top_p), float(weights.sum()), reached=False)
    likely = weights > np.float32(limit.total / _LIKELY_AT_MOST)
    places = np.flatnonzero(likely)
    if weights[places].sum() < top_p * limit.total:
        return None
    scores, tail = scores[places], float((weights * ~likely).sum())
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
