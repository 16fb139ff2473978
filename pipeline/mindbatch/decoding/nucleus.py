"""Top-p: the nucleus of a distribution, found without sorting the vocabulary."""

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.candidates import Candidates
from mindbatch.decoding.crossing import crossing
from mindbatch.decoding.selection import largest


def nucleus(candidates: Candidates, top_p: float, least: int = 1) -> NDArray[np.bool_]:
    """Which candidates [n] are left by top-p, 0 < top_p < 1: those outside a tail of probability 1 - top_p.

    As in transformers 4.57: in ascending order a token is removed while the sum of the probabilities up to it
    is at most 1 - top_p; the last `least` tokens always stay. Among equal scores the earlier place is removed
    first, where PyTorch's unstable sort leaves the choice open.
    Source: Holtzman et al., "The curious case of neural text degeneration", 2020.
    """
    scores = candidates.scores
    edge = crossing(scores, candidates.probabilities, np.float32(1.0 - top_p))
    mask: NDArray[np.bool_] = scores >= edge.key
    if edge.num_equal_before:
        mask[np.flatnonzero(scores == edge.key)[: edge.num_equal_before]] = False
    if least > 1:
        mask[scores.size - 1 - largest(scores[::-1], least)] = True
    return mask
