"""Top-h: as many of the likeliest tokens as keep the entropy of the choice bounded."""

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.candidates import Candidates
from mindbatch.decoding.selection import largest
from mindbatch.decoding.softmax import entropy, weights_of

_LOOKED_AT = 100
"""Only so many of the likeliest tokens can be kept, as in transformers."""


def top_h_mask(candidates: Candidates, top_h: float) -> NDArray[np.bool_]:
    """The likeliest of the candidates [n] whose terms of the entropy add up to at most its share `top_h`.

    The rule is that of transformers 5 (4.57 has no top_h): the entropy is that of the 100 likeliest tokens by
    themselves; the first is always kept. Where tokens beyond the 100th tie with it, the lower places count.
    Source: Potraghloo et al., "Top-H decoding", 2025, whose Algorithm 1 this rule approximates.
    """
    places = largest(candidates.scores, _LOOKED_AT)
    scores = candidates.scores[places]
    weights = weights_of(scores)
    probabilities = weights / weights.sum()
    limit = entropy(scores, weights) * np.float32(top_h)
    possible = np.count_nonzero(probabilities)  # in descending order, so that these come first
    terms = -probabilities[:possible] * np.log(probabilities[:possible])
    # Summed in float64 and compared in float32, as PyTorch does on a CPU.
    sums = np.cumsum(terms, dtype=np.float64).astype(np.float32)
    mask = np.zeros(candidates.scores.size, dtype=np.bool_)
    mask[places[: max(1, np.count_nonzero(sums <= limit))]] = True
    return mask
