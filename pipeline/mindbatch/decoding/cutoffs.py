"""Filters that drop whatever is less likely than a bound: min-p, epsilon and eta sampling."""

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.candidates import Candidates
from mindbatch.decoding.selection import kth_largest, largest
from mindbatch.decoding.softmax import entropy


def min_p_mask(candidates: Candidates, min_p: float, least: int = 1) -> NDArray[np.bool_]:
    """Those [n] with at least `min_p` times the largest probability, and the `least` likeliest.

    Source: Nguyen et al., "Turning up the heat: min-p sampling", 2024.
    """
    probabilities = candidates.probabilities
    mask: NDArray[np.bool_] = probabilities >= np.float32(min_p) * probabilities.max()
    if least > 1:
        mask[largest(candidates.scores, least)] = True
    return mask


def epsilon_mask(candidates: Candidates, epsilon: float, least: int = 1) -> NDArray[np.bool_]:
    """Those [n] with a probability of at least `epsilon`, and the `least` likeliest with all their equals.

    Source: Hewitt, Manning, Liang, "Truncation sampling as language model desmoothing", 2022.
    """
    return _likely(candidates, np.float32(epsilon), least)


def eta_mask(candidates: Candidates, epsilon: float, least: int = 1) -> NDArray[np.bool_]:
    """As `epsilon_mask`, but the bound is at most sqrt(epsilon) * exp(-entropy), for flat distributions.

    Source: Hewitt, Manning, Liang, "Truncation sampling as language model desmoothing", 2022, section 5.
    """
    bound = np.float32(epsilon)
    falling = np.sqrt(bound) * np.exp(-entropy(candidates.scores, candidates.weights))
    return _likely(candidates, min(bound, falling), least)


def _likely(candidates: Candidates, bound: np.float32, least: int) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = candidates.probabilities >= bound
    if np.count_nonzero(mask) < least:
        mask = candidates.scores >= kth_largest(candidates.scores, least)
    return mask
