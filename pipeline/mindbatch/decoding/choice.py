"""What a step chose: a token with its log-probability; and why a sequence ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]
"""An end token, a stop string or a constraint that is fulfilled; or no room for another token."""


@dataclass(slots=True, frozen=True)
class Choice:
    """A token that follows a row.

    `logprob` is its log-probability (nats) under the model's raw logits. `top_logprobs` maps tokens to
    theirs, likeliest first and `token_id` always among them, or is None when it was not asked for.
    """

    token_id: int
    logprob: float
    top_logprobs: dict[int, float] | None = None
