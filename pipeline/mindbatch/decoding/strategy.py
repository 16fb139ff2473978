"""What a search strategy is: it sees a step's logits and says how each sequence goes on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.row import Row


@dataclass(slots=True, frozen=True)
class Branch:
    """A sequence after the step: row `parent` of its group followed by `token_id`.

    `logprob` is the token's log-probability (nats) under the model's raw logits. `top_logprobs` maps tokens
    to theirs, likeliest first and `token_id` always among them, or is None when it was not asked for.
    """

    parent: int
    sample_index: int
    token_id: int
    logprob: float
    top_logprobs: dict[int, float] | None = None


@dataclass(slots=True, frozen=True)
class GroupView:
    """The sequences of one request that take part in the step, in the order of their logits."""

    rows: Sequence[Row]


class Strategy(Protocol):
    """Advances every group that uses it by one step; holds no state of any group."""

    def advance(self, groups: Sequence[GroupView], logits: NDArray[np.float32]) -> list[list[Branch]]:
        """The branches of each group, from logits [S, V] whose rows are the groups' rows one after another.

        Several branches with one parent fork it; a row that is nobody's parent is dropped. What a group gets
        does not depend on the other groups. `logits` is not changed.
        """
        ...
