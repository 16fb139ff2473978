"""Changes to the logits that every strategy applies before it chooses: penalties and minimum lengths.

The rules and their order are those of transformers 4.57 (generation/logits_process.py).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.row import Row


def adjust(logits: NDArray[np.float32], row: Row) -> NDArray[np.float32]:
    """The row's logits [V] after its processors; `logits` itself, not a copy, when none is active."""
    scores = logits
    if row.params.repetition_penalty != 1.0:
        scores = penalise_repetition(scores, row.seen_token_ids(), row.params.repetition_penalty)
    if row.eos_token_ids and row.ends_too_early:
        scores = forbid(scores, row.eos_token_ids)
    return scores


def penalise_repetition(
    scores: NDArray[np.float32], token_ids: NDArray[np.int64], penalty: float
) -> NDArray[np.float32]:
    """A copy of `scores` [V] in which each of `token_ids` is divided by `penalty`, or multiplied if negative.

    A token counts once however often it is named. Source: Keskar et al., "CTRL", 2019, section 4.1, with the
    rule for negative scores that transformers added.
    """
    factor = np.float32(penalty)
    seen = scores[token_ids]
    penalised = scores.copy()
    penalised[token_ids] = np.where(seen < 0, seen * factor, seen / factor)
    return penalised


def forbid(scores: NDArray[np.float32], token_ids: Sequence[int]) -> NDArray[np.float32]:
    """A copy of `scores` [V] with each of `token_ids` at minus infinity; ids of V or more are passed over."""
    allowed = scores.copy()
    allowed[[token for token in token_ids if token < scores.size]] = -np.inf
    return allowed
