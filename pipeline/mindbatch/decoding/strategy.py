"""Base of decoding strategies, which continue requests by the logits of a step."""

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
    """A continuation that has ended, with its score in a search that ranks.

    cumulative_logprob, logprobs: log-probabilities under the model's raw logits, as in `Row`.
    embedding: the embedding of the prompt, where that is requested instead of a continuation.
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
        """Returns the hypothesis of a row followed by its last token."""
        logprobs = None
        if choice.top_logprobs is not None:
            logprobs = (*(row.logprobs or ()), choice.top_logprobs)
        tokens = (*row.output_token_ids, choice.token_id)
        return cls(tokens, reason, row.cumulative_logprob + choice.logprob, logprobs, score)


@dataclass(slots=True, frozen=True)
class Decision:
    """The decision of a strategy for a request.

    branches: the running sequences after the step, in order. Several branches of one parent fork it; a row
        without a branch is dropped.
    kept: the ended hypotheses of a search that may still be returned.
    results: the outputs of a finished search, best first.
    error: the reason why the request cannot continue, without effect on others; there are no branches then.
    """

    branches: Sequence[Branch]
    kept: Sequence[Hypothesis] = ()
    results: Sequence[Hypothesis] | None = None
    error: PromptError | None = None


@dataclass(slots=True, frozen=True)
class GroupView:
    """The sequences of one request in a step, in the order of their logits.

    ending: returns the reason why a row would end with a token, or None; searches use it.
    state: the state that the strategy's `begin` made for the request.
    hidden: the last hidden state of each row [len(rows), hidden size], if the strategy needs them.
    prompt_hidden: the last hidden states of the prompt's tokens [prompt length, hidden size], likewise.
    """

    rows: Sequence[Row]
    ending: Callable[[int, int], FinishReason | None] = lambda row, token: None
    state: Any = None
    hidden: NDArray[np.float32] | None = None
    prompt_hidden: NDArray[np.float32] | None = None


class DecodingStrategy:
    """Advances all of its requests by one step; keeps data of a request in its state only.

    searches: False if each row is an independent sample, which the engine streams and ends; True if rows
        compete, so that the strategy ends the request and chooses its results.
    needs_hidden: True if views must have the last hidden states.
    """

    searches = True
    needs_hidden = False

    def width(self, params: DecodingParams) -> int:
        """Returns the maximum number of rows of a request at a time."""
        return 1

    def begin(self, params: DecodingParams) -> Any:
        """Returns the state of a new request; None if it has none."""
        return None

    def advance(
        self, groups: Sequence[GroupView], logits: NDArray[np.float32], summary: Summary = None
    ) -> list[Decision]:
        """Decides for each group, from logits [S, V] whose rows are the groups' rows one after another.

        summary: maxima of parts of the logits, if the kernels computed them.

        A row with a draft of n tokens has n + 1 rows of logits. A group's decision does not depend on other
        groups. `logits` is not changed. An error of one group is in its decision (see `guarded`); if the call
        raises, as NotFiniteError for logits that are not finite, no group's state has changed.
        """
        raise NotImplementedError


def guarded(group: GroupView, decide: Callable[..., Decision], *arguments: Any) -> Decision:
    """Calls `decide` for the group; an exception ends this request and no other."""
    try:
        return decide(*arguments)
    except Exception as error:
        return Decision([], error=row_error(error, group.rows[0].key))
