"""Inputs and end of a sequence: a step's choice, a draft to verify, a constraint; the reason it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

FinishReason = Literal["stop", "length"]
"""An end token, a stop string or a constraint that is fulfilled; or no room for another token."""


@dataclass(slots=True, frozen=True)
class TokenChoice:
    """A token that follows a row.

    `logprob` is its log-probability (nats) under the model's raw logits. `top_logprobs` maps tokens to
    theirs, likeliest first and `token_id` always among them, or is None when it was not asked for.
    """

    token_id: int
    logprob: float
    top_logprobs: dict[int, float] | None = None


@dataclass(slots=True, frozen=True)
class Draft:
    """Tokens that may follow a row's output.

    `probabilities` has for each of them the distribution [V] that it was drawn from; None says that the
    tokens were not drawn but certain, as those found in the prompt are.
    """

    token_ids: tuple[int, ...]
    probabilities: tuple[NDArray[np.float32], ...] | None = None


class Constraint(Protocol):
    """The state of one row; the row advances it by each token that it gets."""

    def allowed(self, eos_token_ids: tuple[int, ...]) -> NDArray[np.bool_]:
        """Mask [V] of tokens that may follow, not to be changed; has end tokens where the output may end.

        None is when the constraint is complete and there are no end tokens, and when it is at fault.
        """
        ...

    @property
    def is_complete(self) -> bool:
        """True if the output fulfils it and no text can be added."""
        ...

    @property
    def fault(self) -> str | None:
        """Error of the row, in one line: no token fits, or its grammar takes too much to follow."""
        ...

    def advance(self, token_id: int) -> None:
        """The row goes on with an allowed token; an end token leaves the state as it is."""
        ...

    def fork(self) -> Constraint:
        """An independent copy."""
        ...
