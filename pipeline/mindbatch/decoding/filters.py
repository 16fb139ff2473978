"""Filters the tokens that sampling chooses from: temperature, then the others in transformers' order.

The rules are those of transformers 4.57 (generation/logits_process.py) without sorting the vocabulary; top_h
is that of transformers 5, and top_n_sigma that of llama.cpp, where it comes first. Each filter is a mask over
the scores that the filters before it left. Rows are taken one by one: a row stays in the core's cache from
one filter to the next.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.candidates import Candidates
from mindbatch.decoding.params import PARAMETERS, DecodingParams
from mindbatch.decoding.softmax import entropy, exponential, kth_largest, largest, logarithm, weights_of

_SORTED_BITS = 20
"""Keys are put in bins by the 12 bits before these: so few to a bin that only those of one bin are sorted."""


def crossing(
    keys: NDArray[np.float32], weights: NDArray[np.float32], share: np.float32, *, reached: bool = False
) -> tuple[np.float32, int]:
    """Returns the first of `keys` [n], in ascending order, at which the sum of `weights` [n] crosses a share
    of it.

    Crossing is exceeding, or if `reached`, reaching; where no sum does, it is the last key. Also how many
    keys equal to it come before that one. Shares are compared in float32, as PyTorch does with sums that it
    accumulates in float64.
    """
    total = float(weights.sum())

    def num_short(sums: NDArray[np.float64]) -> int:
        shares = (sums / total).astype(np.float32)
        short = int(np.searchsorted(shares, share, side="left" if reached else "right"))
        return min(short, sums.size - 1)

    leading = _in_order(keys) >> _SORTED_BITS
    bins = leading - leading.min()
    sums = np.cumsum(np.bincount(bins, weights), dtype=np.float64)
    crossed = num_short(sums)
    indices = np.flatnonzero(bins == crossed)
    indices = indices[np.argsort(keys[indices])]
    before = sums[crossed - 1] if crossed else 0.0
    rank = num_short(before + np.cumsum(weights[indices], dtype=np.float64))
    ordered = keys[indices]
    return ordered[rank], rank - int(np.searchsorted(ordered, ordered[rank]))


def _in_order(keys: NDArray[np.float32]) -> NDArray[np.int32]:
    """Integers in the order of `keys`: that of a float's bits (IEEE 754), but for the negative ones."""
    bits = (keys + np.float32(0.0)).view(np.int32)  # a sum, for -0.0 equals 0.0
    return bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))


def nucleus(candidates: Candidates, top_p: float, least: int = 1) -> NDArray[np.bool_]:
    """Mask of the candidates [n] that top-p keeps, 0 < top_p < 1: all but a tail of probability 1 - top_p.

    As in transformers 4.57: in ascending order a token is removed while the sum of the probabilities up to it
    is at most 1 - top_p; the last `least` tokens always stay. Among equal scores the earlier index is removed
    first, where PyTorch's unstable sort leaves the choice open.
    Source: Holtzman et al., "The curious case of neural text degeneration", 2020.
    """
    scores, share = candidates.scores, np.float32(1.0 - top_p)
    edge, num_equal_before = crossing(scores, candidates.weights, share)
    mask: NDArray[np.bool_] = scores >= edge
    if num_equal_before:
        mask[np.flatnonzero(scores == edge)[:num_equal_before]] = False
    if least > 1:
        mask[scores.size - 1 - largest(scores[::-1], least)] = True
    return mask


Filter = Callable[[Candidates, Any, int], NDArray[np.bool_]]
"""Which candidates [n] are left, given the parameter's value and how many of the likeliest must be."""
_TOP_H_LOOKS_AT = 100
"""Only so many of the likeliest tokens can be kept by top_h, as in transformers."""


def active_filters(params: DecodingParams) -> frozenset[str]:
    return frozenset(name for name, neutral, _ in _FILTERS if getattr(params, name) != neutral)


def sampling_candidates(
    scores: NDArray[np.float32],
    params: DecodingParams,
    least: int = 1,
) -> Candidates:
    """Filters `scores` [V] by `params`; no copy is made when no filter is active.

    The `least` likeliest tokens survive every filter but top_h: beam sampling asks for one more than
    there are end tokens, so that a hypothesis can always go on.
    """
    if params.temperature != 1.0:
        scores = scores / np.float32(params.temperature)
    left = Candidates(scores)
    for name, neutral, mask in _FILTERS:
        value = getattr(params, name)
        if value != neutral:
            left = left.keep(mask(left, value, least))
    return left


def top_k_mask(candidates: Candidates, k: int, least: int = 1) -> NDArray[np.bool_]:
    """Returns the k or `least` likeliest [n] and all that equal the last. Source: Fan, Lewis, Dauphin,
    2018."""
    mask: NDArray[np.bool_] = candidates.scores >= kth_largest(candidates.scores, max(k, least))
    return mask


def top_n_sigma_mask(candidates: Candidates, n: float, least: int = 1) -> NDArray[np.bool_]:
    """Masks scores [n] within `n` standard deviations of the largest, and the `least` likeliest.

    As in llama.cpp, the deviation is that of all scores but forbidden ones, which are minus infinity. A
    temperature changes nothing, for it scales both.
    Source: Tang et al., "Top-nσ: not all logits are you need", 2024 (arXiv 2411.07641), section 3.
    """
    scores = candidates.scores
    deviation = scores[scores > -np.inf].std(dtype=np.float64)
    mask: NDArray[np.bool_] = scores >= np.float32(scores.max() - n * deviation)
    if least > 1:
        mask[largest(scores, least)] = True
    return mask


def top_h_mask(candidates: Candidates, top_h: float, least: int = 1) -> NDArray[np.bool_]:
    """Returns the likeliest of the candidates [n] whose terms of the entropy add up to at most its share
    `top_h`.

    The rule is that of transformers 5 (4.57 has no top_h): the entropy is that of the 100 likeliest tokens by
    themselves; the first is always kept, and no more on account of `least`. Where tokens beyond the 100th
    tie with it, the lower indices count.
    Source: Potraghloo et al., "Top-H decoding", 2025, whose Algorithm 1 this rule approximates.
    """
    indices = largest(candidates.scores, _TOP_H_LOOKS_AT)
    scores = candidates.scores[indices]
    weights = weights_of(scores)
    probabilities = weights / weights.sum()
    limit = entropy(scores, weights) * np.float32(top_h)
    possible = np.count_nonzero(probabilities)  # in descending order, so that these come first
    terms = -probabilities[:possible] * logarithm(probabilities[:possible])
    # Summed in float64 and compared in float32, as PyTorch does on a CPU.
    sums = np.cumsum(terms, dtype=np.float64).astype(np.float32)
    mask = np.zeros(candidates.scores.size, dtype=np.bool_)
    mask[indices[: max(1, np.count_nonzero(sums <= limit))]] = True
    return mask


def min_p_mask(candidates: Candidates, min_p: float, least: int = 1) -> NDArray[np.bool_]:
    """Masks those [n] with at least `min_p` times the largest probability, and the `least` likeliest.

    Source: Nguyen et al., "Turning up the heat: min-p sampling", 2024.
    """
    probabilities = candidates.probabilities
    mask: NDArray[np.bool_] = probabilities >= np.float32(min_p) * probabilities.max()
    if least > 1:
        mask[largest(candidates.scores, least)] = True
    return mask


def typical_mask(candidates: Candidates, typical_p: float, least: int = 1) -> NDArray[np.bool_]:
    """Returns the most typical candidates [n] that together reach the probability `typical_p`, 0 < typical_p
    < 1.

    A token is the more typical the nearer -log of its probability is to the entropy. As in transformers 4.57
    the tokens below the mark and the one that reaches it stay, with all that are as typical as that one, and
    the `least` most typical ones. Source: Meister et al., "Locally typical sampling", 2023.
    """
    scores, weights = candidates.scores, candidates.weights
    total = weights.sum()
    # -log p - entropy = largest + log(total) - score - entropy
    strangeness = np.abs(scores.max() + logarithm(total) - entropy(scores, weights) - scores)
    edge, _ = crossing(strangeness, weights, np.float32(typical_p), reached=True)
    mask: NDArray[np.bool_] = strangeness <= edge
    if least > 1:
        mask[largest(-strangeness, least)] = True
    return mask


def epsilon_mask(candidates: Candidates, epsilon: float, least: int = 1) -> NDArray[np.bool_]:
    """Masks probabilities [n] of at least `epsilon`, and the `least` likeliest with all their equals.

    Source: Hewitt, Manning, Liang, "Truncation sampling as language model desmoothing", 2022.
    """
    return _likely(candidates, np.float32(epsilon), least)


def eta_mask(candidates: Candidates, epsilon: float, least: int = 1) -> NDArray[np.bool_]:
    """Masks as `epsilon_mask`, with a bound of at most sqrt(epsilon) * exp(-entropy), for flat ones.

    Source: Hewitt, Manning, Liang, "Truncation sampling as language model desmoothing", 2022, section 5.
    """
    bound = np.float32(epsilon)
    falling = np.sqrt(bound) * exponential(-entropy(candidates.scores, candidates.weights))
    return _likely(candidates, min(bound, falling), least)


def _likely(candidates: Candidates, bound: np.float32, least: int) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = candidates.probabilities >= bound
    if np.count_nonzero(mask) < least:
        mask = candidates.scores >= kth_largest(candidates.scores, least)
    return mask


IN_ORDER: dict[str, Filter] = {
    "top_n_sigma": top_n_sigma_mask,
    "top_h": top_h_mask,
    "top_k": top_k_mask,
    "top_p": nucleus,
    "min_p": min_p_mask,
    "typical_p": typical_mask,
    "epsilon_cutoff": epsilon_mask,
    "eta_cutoff": eta_mask,
}
"""By parameter, the filters in the order in which they are applied."""
_FILTERS = [(name, PARAMETERS[name].default, mask) for name, mask in IN_ORDER.items()]
