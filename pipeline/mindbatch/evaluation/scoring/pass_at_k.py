"""pass@k from verdicts that others have recorded: how often k samples of a problem have a right one.

Generated code is never run here.
"""

from __future__ import annotations

from math import comb


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k): the unbiased estimate of Chen et al. 2021, https://arxiv.org/abs/2107.03374.

    Raises:
        ValueError: k is more than the samples, or the numbers contradict each other.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k={k}: must be from 1 to {samples}, the samples that there are")
    if not 0 <= passed <= samples:
        raise ValueError(f"{passed} of {samples} samples passed: must be from 0 to {samples}")
    return 1.0 - comb(samples - passed, k) / comb(samples, k)
