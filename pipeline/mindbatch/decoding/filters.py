"""Which tokens sampling may choose from: temperature and the filters after it, in transformers' order.

The rules are those of transformers 4.57 (generation/logits_process.py) without sorting the vocabulary; top_h
is that of transformers 5. Each filter is a mask over the scores that the filters before it left. Rows are
taken one by one: a row stays in the core's cache from one filter to the next.
"""

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.candidates import Candidates
from mindbatch.decoding.cutoffs import epsilon_mask, eta_mask, min_p_mask
from mindbatch.decoding.nucleus import nucleus
from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.selection import kth_largest
from mindbatch.decoding.top_h import top_h_mask
from mindbatch.decoding.typical import typical_mask


def sampling_candidates(
    scores: NDArray[np.float32],
    params: DecodingParams,
    least: int = 1,
    normaliser: float | None = None,
) -> Candidates:
    """What is left of `scores` [V] after the filters of `params`; no copy is made when none is active.

    The `least` likeliest tokens survive every filter but top_h: beam sampling asks for one more than
    there are end tokens, so that a hypothesis can always go on. The scores' own `normaliser`, if it is known,
    saves top_p most of its work; the result is the same.
    """
    if params.temperature != 1.0:
        scores, normaliser = scores / np.float32(params.temperature), None
    left = Candidates(scores, normaliser=normaliser)
    if params.top_h < 1.0:
        left = left.keep(top_h_mask(left, params.top_h))
    if params.top_k > 0:
        left = left.keep(top_k_mask(left.scores, max(params.top_k, least)))
    if params.top_p < 1.0:
        left = left.keep(nucleus(left, params.top_p, least))
    if params.min_p > 0.0:
        left = left.keep(min_p_mask(left, params.min_p, least))
    if params.typical_p < 1.0:
        left = left.keep(typical_mask(left, params.typical_p, least))
    if params.epsilon_cutoff > 0.0:
        left = left.keep(epsilon_mask(left, params.epsilon_cutoff, least))
    if params.eta_cutoff > 0.0:
        left = left.keep(eta_mask(left, params.eta_cutoff, least))
    return left


def top_k_mask(scores: NDArray[np.float32], k: int) -> NDArray[np.bool_]:
    """The k largest of `scores` [n] and all that equal the k-th. Source: Fan, Lewis, Dauphin, 2018."""
    mask: NDArray[np.bool_] = scores >= kth_largest(scores, k)
    return mask
