"""Top-p: the nucleus of a distribution, found without sorting the vocabulary."""

import math

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.candidates import Candidates
from mindbatch.decoding.crossing import Crossing, Limit, crossing
from mindbatch.decoding.selection import largest

_LIKELY = 1 / 4096
"""Tokens above this share of the tail's probability count as likely; the others are often within the tail."""
_PEAKED = 0.004
"""From this probability of the likeliest token on, the likely tokens may well hold the nucleus."""
_DOUBT = 2e-7
"""Several times the rounding error of a pairwise float32 sum of all weights, as a share of it."""


def nucleus(candidates: Candidates, top_p: float, least: int = 1) -> NDArray[np.bool_]:
    """Mask of the candidates [n] that top-p keeps, 0 < top_p < 1: all but a tail of probability 1 - top_p.

    As in transformers 4.57: in ascending order a token is removed while the sum of the probabilities up to it
    is at most 1 - top_p; the last `least` tokens always stay. Among equal scores the earlier place is removed
    first, where PyTorch's unstable sort leaves the choice open.
    Source: Holtzman et al., "The curious case of neural text degeneration", 2020.
    """
    scores, share = candidates.scores, np.float32(1.0 - top_p)
    mask = _among_the_likely(scores, candidates.normaliser, float(share))
    if mask is None:
        weights = candidates.weights
        edge = crossing(scores, weights, Limit(share, float(weights.sum())))
        mask = scores >= edge.key
        _drop_equals(mask, scores, edge)
    if least > 1:
        mask[scores.size - 1 - largest(scores[::-1], least)] = True
    return mask


def _among_the_likely(
    scores: NDArray[np.float32], normaliser: float, share: float
) -> NDArray[np.bool_] | None:
    """The nucleus of a distribution so peaked that a few likely tokens hold it, found from these alone.

    None if they do not hold it, and if a sum comes so close to the limit that rounding may decide.
    """
    highest = scores.max()
    if float(highest) - normaliser < math.log(_PEAKED):
        return None
    mask = scores > np.float32(normaliser + math.log(share * _LIKELY))
    places = np.flatnonzero(mask)
    likely = scores[places]
    ascending = np.sort(likely)
    shares = np.exp(ascending - highest) * math.exp(float(highest) - normaliser)
    # The tokens up to one of them make up what those above it leave.
    up_to = 1.0 - (np.cumsum(shares[::-1], dtype=np.float64)[::-1] - shares)
    removed, surely = np.searchsorted(up_to, [share - _DOUBT, share + _DOUBT])
    # Within the rounding error, or at an end of the likely ones, only the sum of all weights can decide.
    if removed != surely or removed in (0, likely.size):
        return None
    edge = ascending[removed]
    mask[places[likely < edge]] = False
    before = int(removed - np.searchsorted(ascending, edge))
    _drop_equals(mask, scores, Crossing(edge, before))
    return mask


def _drop_equals(mask: NDArray[np.bool_], scores: NDArray[np.float32], edge: Crossing) -> None:
    """Takes those of the edge's equals that come before it out of `mask`."""
    if edge.num_equal_before:
        mask[np.flatnonzero(scores == edge.key)[: edge.num_equal_before]] = False
