"""What the model itself says of tokens, before any processing: RawScores of a step, and log-probabilities."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.choice import Choice
from mindbatch.decoding.row import Row
from mindbatch.decoding.selection import largest
from mindbatch.decoding.softmax import likeliest_and_normalisers
from mindbatch.errors import MindBatchError


class RawScores:
    """Log-probabilities of a step.

    logits: [S, V]; not changed.
    likeliest: [S], the place of each row's largest logit, the lowest among equals.
    normalisers: [S], what to subtract from a row's logits to get log-probabilities (nats).
    """

    def __init__(self, rows: Sequence[Row], logits: NDArray[np.float32]) -> None:
        """`rows` [S] are those that the logits follow. Raises MindBatchError when logits are not finite."""
        self.logits = logits
        self.likeliest, self.normalisers = likeliest_and_normalisers(logits)
        self._rows = rows
        _refuse_not_finite(rows, self.normalisers)

    def choice(self, place: int, token_id: int) -> Choice:
        """The token after the row at `place`, with the log-probabilities that the row asks for."""
        logits, normaliser = self.logits[place], float(self.normalisers[place])
        count = self._rows[place].params.logprobs
        top = None if count is None else top_logprobs(logits, normaliser, token_id, count)
        return Choice(token_id, float(logits[token_id]) - normaliser, top)


def _refuse_not_finite(rows: Sequence[Row], normalisers: NDArray[np.float64]) -> None:
    if np.isfinite(normalisers).all():
        return
    raise MindBatchError(
        f"logits of row hash {row.row_hash}, sample {row.sample_index}, step {row.step}: NaN or infinite; "
        "the model's weights or its number format do not fit"
        for row, normaliser in zip(rows, normalisers, strict=True)
        if not np.isfinite(normaliser)
    )


def token_logprobs(
    logits: NDArray[np.float32], token_ids: NDArray[np.int64], count: int
) -> list[dict[int, float]]:
    """For each row of `logits` [S, V], log-probabilities (nats) by token: see `top_logprobs`.

    `token_ids` [S] are the tokens that followed; for a prompt, row i is what the model said of token i + 1.
    """
    normalisers = likeliest_and_normalisers(logits)[1]
    rows = zip(logits, normalisers, token_ids, strict=True)
    return [top_logprobs(row, normaliser, int(token), count) for row, normaliser, token in rows]


def top_logprobs(
    logits: NDArray[np.float32], normaliser: float, token_id: int, count: int
) -> dict[int, float]:
    """The `count` likeliest tokens of `logits` [V] in that order, then `token_id` if it is not among them."""
    tokens = [int(token) for token in largest(logits, count)]
    if token_id not in tokens:
        tokens.append(token_id)
    return {token: float(logits[token]) - float(normaliser) for token in tokens}
