"""Log-probabilities of tokens, always those of the model's raw logits, before any processing."""

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.selection import largest
from mindbatch.decoding.softmax import likeliest_and_normalisers


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
