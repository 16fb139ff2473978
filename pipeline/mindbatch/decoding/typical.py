"""Typical sampling: the tokens whose information is closest to what is expected."""

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.candidates import Candidates
from mindbatch.decoding.crossing import Limit, crossing
from mindbatch.decoding.selection import largest
from mindbatch.decoding.softmax import entropy


def typical_mask(candidates: Candidates, typical_p: float, least: int = 1) -> NDArray[np.bool_]:
    """The most typical candidates [n] that together reach the probability `typical_p`, 0 < typical_p < 1.

    A token is the more typical the nearer -log of its probability is to the entropy. As in transformers 4.57
    the tokens below the mark and the one that reaches it stay, with all that are as typical as that one, and
    the `least` most typical ones. Source: Meister et al., "Locally typical sampling", 2023.
    """
    scores, weights = candidates.scores, candidates.weights
    total = weights.sum()
    # -log p - entropy = largest + log(total) - score - entropy
    strangeness = np.abs(scores.max() + np.log(total) - entropy(scores, weights) - scores)
    edge = crossing(strangeness, weights, Limit(np.float32(typical_p), float(total), reached=True)).key
    mask: NDArray[np.bool_] = strangeness <= edge
    if least > 1:
        mask[largest(-strangeness, least)] = True
    return mask
