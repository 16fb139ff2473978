"""Contrastive search: the likeliest tokens are tried, and the one least like the context is taken.

Source: Su et al., "A contrastive framework for neural text generation", NeurIPS 2022, section 3.2; the order
of operations is transformers'.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.beams import RequestStep, SearchStrategy
from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.processors import adjust
from mindbatch.decoding.row import FinishReason
from mindbatch.decoding.softmax import largest, softmax
from mindbatch.decoding.strategy import Branch, Decision, GroupView, Hypothesis


@dataclass(slots=True)
class ContrastiveState:
    """The state of one request: what has been taken so far, and what is being tried.

    directions: [capacity, hidden size], of which the first `length` rows are the unit hidden states of the
        prompt and of the tokens taken.
    probabilities: of the candidates, one for each row of the request.
    endings: why the request would end with each candidate, or None.
    """

    directions: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))
    length: int = 0
    probabilities: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    endings: list[FinishReason | None] = field(default_factory=list)

    def extend(self, hidden: NDArray[np.float32]) -> None:
        """Adds hidden states [n, hidden size] to the context."""
        needed = self.length + len(hidden)
        if needed > len(self.directions):
            # Doubled, so that a token seldom costs a copy of the whole context.
            grown = np.empty((max(needed, 2 * len(self.directions)), hidden.shape[1]), np.float32)
            if self.length:
                grown[: self.length] = self.directions[: self.length]
            self.directions = grown
        self.directions[self.length : needed] = _unit(hidden)
        self.length = needed

    def likeness(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns the largest cosine of each hidden state [n, hidden size] with one of the context: [n]."""
        cosines = self.directions[: self.length] @ _unit(hidden).T
        largest_cosines: NDArray[np.float32] = cosines.max(axis=0)
        return largest_cosines


class ContrastiveSearch(SearchStrategy):
    """Every candidate of a request is a row whose last token is on trial.

    A step computes the hidden states of all candidates. The best of them is taken, and its own logits name
    the next candidates, so that a token costs one step of top_k rows. A token that the processors forbid is
    no candidate (transformers may take one, with probability 0).
    """

    needs_hidden = True

    def width(self, params: DecodingParams) -> int:
        return params.top_k

    def begin(self, params: DecodingParams) -> Any:
        return ContrastiveState()

    def decide(self, request: RequestStep, computed: None) -> Decision:
        group = request.group
        trial: ContrastiveState = group.state
        taken = 0
        if trial.length == 0:
            assert group.prompt_hidden is not None
            trial.extend(group.prompt_hidden)
        else:
            assert group.hidden is not None
            taken = _best(group, trial)
            reason = trial.endings[taken]
            if reason is not None:
                return Decision([], results=[Hypothesis.of(group.rows[taken], reason)])
            trial.extend(group.hidden[taken : taken + 1])
        return Decision(_candidates(request, trial, taken))


def _best(group: GroupView, trial: ContrastiveState) -> int:
    """Returns the candidate with the best balance of probability and unlikeness; the likelier among
    equals."""
    assert group.hidden is not None
    alpha = np.float32(group.rows[0].params.penalty_alpha)
    scores = (np.float32(1) - alpha) * trial.probabilities - alpha * trial.likeness(group.hidden)
    return int(scores.argmax())


def _candidates(request: RequestStep, trial: ContrastiveState, taken: int) -> list[Branch]:
    """Puts the likeliest tokens after the row `taken` on trial."""
    group, raw = request.group, request.raw
    row, number = group.rows[taken], request.first + taken
    scores = adjust(raw.logits[number], row)
    tokens = largest(scores, row.params.top_k)
    tokens = tokens[np.isfinite(scores[tokens])]
    # Over the vocabulary, not over the candidates: the paper weighs the model's own probability.
    trial.probabilities = softmax(scores)[tokens]
    trial.endings = [group.ending(taken, int(token)) for token in tokens]
    return [
        Branch(taken, index, (raw.choice(number, int(token)),)) for index, token in enumerate(tokens.tolist())
    ]


def _unit(hidden: NDArray[np.float32]) -> NDArray[np.float32]:
    unit: NDArray[np.float32] = hidden / np.linalg.norm(hidden, axis=1, keepdims=True)
    return unit
