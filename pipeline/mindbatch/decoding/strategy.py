"""Base of decoding strategies: each sees a step's logits and decides how each request goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.row import FinishReason, Row, TokenChoice, row_error
from mindbatch.decoding.softmax import Summary
from mindbatch.io.errors import PromptError


@dataclass(slots=True, frozen=True)
class Branch:
    """A sequence after the step: row `parent` of its group followed by the tokens of `choices`.

    There is one choice, or several where drafted tokens were accepted.
    """

    parent: int
    sample_index: int
    choices: tuple[TokenChoice, ...]


@dataclass(slots=True, frozen=True)
class Hypothesis:
    """A continuation that has ended, with the score that its search ranks it by, if it ranks.

    `cumulative_logprob` and `logprobs` are those of the model's raw logits, as in `Row`. embedding: of the
    prompt, where that was asked for in place of a continuation.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    cumulative_logprob: float
    logprobs: tuple[dict[int, float], ...] | None
    score: float | None = None
    embedding: tuple[float, ...] | None = None

    @classmethod
    def of(cls, row: Row, reason: FinishReason, score: float | None = None) -> Hypothesis:
        logprobs = None if row.logprobs is None else tuple(row.logprobs)
        return cls(tuple(row.output_token_ids), reason, row.cumulative_logprob, logprobs, score)

    @classmethod
    def after(cls, row: Row, choice: TokenChoice, reason: FinishReason, score: float) -> Hypothesis:
        """The row followed by a last token."""
        logprobs = None
        if choice.top_logprobs is not None:
            logprobs = (*(row.logprobs or ()), choice.top_logprobs)
        tokens = (*row.output_token_ids, choice.token_id)
        return cls(tokens, reason, row.cumulative_logprob + choice.logprob, logprobs, score)


@dataclass(slots=True, frozen=True)
class Decision:
    """Decision about how a request goes on.

    branches: its live sequences after the step, in order. Several with one parent fork it; a row that is
        nobody's parent is dropped.
    kept: of a search, the hypotheses that have ended and may still be returned.
    results: of a search that is over, its outputs, best first.
    error: why the request cannot go on, which does not concern the others; then there are no branches.
    """

    branches: Sequence[Branch]
    kept: Sequence[Hypothesis] = ()
    results: Sequence[Hypothesis] | None = None
    error: PromptError | None = None


@dataclass(slots=True, frozen=True)
class GroupView:
    """The sequences of one request that take part in the step, in the order of their logits.

    ending: (row, token) -> why that row would end with that token, or None; for searches.
    state: what the strategy's `begin` made for the request.
    hidden: [len(rows), hidden size], the last hidden state of each row, if the strategy needs them.
    prompt_hidden: [prompt length, hidden size], the same for each token of the prompt.
    """

    rows: Sequence[Row]
    ending: Callable[[int, int], FinishReason | None] = lambda row, token: None
    state: Any = None
    hidden: NDArray[np.float32] | None = None
    prompt_hidden: NDArray[np.float32] | None = None


class DecodingStrategy:
    """Advances every request that uses it by one step; keeps nothing of a request but in its state.

    searches: False if each row is a sample of its own, which the engine streams and ends by itself; True if
        rows compete, so that the strategy says when the request is done and what it returns.
    needs_hidden: whether views bring the last hidden states.
    """

    searches = True
    needs_hidden = False

    def width(self, params: DecodingParams) -> int:
        """The most rows that a request has at a time."""
        return 1

    def begin(self, params: DecodingParams) -> Any:
        """The state of a new request; None if there is none."""
        return None

    def advance(
        self, groups: Sequence[GroupView], logits: NDArray[np.float32], summary: Summary = None
    ) -> list[Decision]:
        """Decides for each group, from logits [S, V] whose rows are the groups' rows one after another.

        summary: what else is known of the logits, if anything.

        A row with a draft of n tokens has n + 1 rows of logits. What a group gets does not depend on the
        other groups. `logits` is not changed. What fails for one group is its decision's error (see
        `guarded`); if the call itself raises, as NotFiniteError for logits that are no numbers, no group's
        state has changed.
        """
        raise NotImplementedError


def guarded(group: GroupView, decide: Callable[..., Decision], *arguments: Any) -> Decision:
    """Calls `decide` for the group; whatever it raises ends this request and no other."""
    try:
        return decide(*arguments)
    except Exception as error:
        return Decision([], error=row_error(error, group.rows[0].key))
