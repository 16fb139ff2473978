"""renormalize_logits: scores made log-probabilities again after all else."""

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.params import DecodingParams


def renormalised(scores: NDArray[np.float32], params: DecodingParams) -> NDArray[np.float32]:
    """Log-probabilities (nats) of `scores` [n] if `renormalize_logits` asks for them, else `scores` itself.

    One score must be finite; a token at minus infinity stays there. Without sampling, `adjust` does this.
    With sampling it comes after the filters, so whoever applies those does it.
    """
    if not params.renormalize_logits:
        return scores
    shifted: NDArray[np.float32] = scores - scores.max()
    shifted -= np.log(np.exp(shifted).sum())
    return shifted
