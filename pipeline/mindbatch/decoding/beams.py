"""Shared parts of the beam searches: their part of a step, the hypotheses that ended, and how beams go on.

The rules are those of transformers 4.57.1 (`GenerationMixin._beam_search`). A hypothesis is ranked by its sum
of scores divided by length**length_penalty, a simple form of the length normalisation of Wu et al., "Google's
neural machine translation system", 2016, section 7. The length is that of the output, its end token included.
"""

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.row import FinishReason, NoTokenLeftError, RawScores, TokenChoice
from mindbatch.decoding.softmax import Summary
from mindbatch.decoding.strategy import Branch, Decision, DecodingStrategy, GroupView, Hypothesis, guarded
from mindbatch.io.errors import PromptError


class Candidate(NamedTuple):
    """Row `parent` of a request followed by `token_id`; `total` is the sum of its output's scores."""

    parent: int
    token_id: int
    total: float


@dataclass(slots=True, frozen=True)
class RequestStep:
    """A request's part of a step: its rows are rows `first`, `first + 1`, ... of the step's raw scores.

    dead_ends: why rows have no token left to go on with.
    """

    group: GroupView
    raw: RawScores
    first: int
    dead_ends: list[PromptError] = field(default_factory=list)

    @property
    def params(self) -> DecodingParams:
        return self.group.rows[0].params

    @property
    def length(self) -> int:
        """Tokens of output after this step; the same for all rows."""
        return self.group.rows[0].step + 1

    @property
    def longest(self) -> int:
        """Maximum number of tokens of output."""
        row = self.group.rows[0]
        return row.limit - len(row.prompt_token_ids)

    @property
    def fan_out(self) -> int:
        """Candidates to look at for each beam wanted: were every end token among them, one would be left."""
        return max(2, 1 + len(self.group.rows[0].eos_token_ids))

    def ending(self, candidate: Candidate) -> FinishReason | None:
        return self.group.ending(candidate.parent, candidate.token_id)

    def hypothesis(self, candidate: Candidate, reason: FinishReason) -> Hypothesis:
        score = candidate.total / self.length**self.params.length_penalty
        return Hypothesis.after(self.group.rows[candidate.parent], self._choice(candidate), reason, score)

    def decision(self, live: Sequence[tuple[int, Candidate]], hypotheses: Sequence[Hypothesis]) -> Decision:
        """Goes on with `live`, each with its sample index; without any, the search is over.

        If it is over without a hypothesis, what ended its rows is the request's error; a processor that
        failed is one always.
        """
        failures = [error for error in self.dead_ends if not isinstance(error, NoTokenLeftError)]
        if failures:
            return Decision([], error=failures[0])
        if live:
            branches = [
                Branch(candidate.parent, index, (self._choice(candidate),)) for index, candidate in live
            ]
            return Decision(branches, kept=hypotheses)
        if not hypotheses and self.dead_ends:
            return Decision([], error=self.dead_ends[0])
        return Decision([], results=hypotheses)

    def _choice(self, candidate: Candidate) -> TokenChoice:
        return self.raw.choice(self.first + candidate.parent, candidate.token_id)


class SearchStrategy(DecodingStrategy):
    """Base of the searches: a request is one `Beams` unless its strategy begins something else."""

    def width(self, params: DecodingParams) -> int:
        return params.num_beams

    def begin(self, params: DecodingParams) -> Any:
        return Beams(FinishedHypotheses(params.num_beams), [0.0])

    def advance(
        self, groups: Sequence[GroupView], logits: NDArray[np.float32], summary: Summary = None
    ) -> list[Decision]:
        raw = RawScores.of([row for group in groups for row in group.rows], logits, summary)
        ends = accumulate(len(group.rows) for group in groups)
        requests = [
            RequestStep(group, raw, end - len(group.rows)) for group, end in zip(groups, ends, strict=True)
        ]
        both = zip(requests, self.computed(requests), strict=True)
        return [guarded(request.group, self.decide, request, computed) for request, computed in both]

    def computed(self, requests: Sequence[RequestStep]) -> Sequence[Any]:
        """Returns for each request what is computed for all of them at once."""
        return [None] * len(requests)

    def decide(self, request: RequestStep, computed: Any) -> Decision:
        raise NotImplementedError


class FinishedHypotheses:
    """The best hypotheses of a search that have ended, best first, the earlier among equals.

    There are at most `limit` of them: once there are so many, a new one must beat the worst.
    """

    def __init__(self, limit: int) -> None:
        self.ranked: list[tuple[float, Hypothesis]] = []
        self._limit = limit

    def add(self, hypothesis: Hypothesis) -> None:
        assert hypothesis.score is not None
        insort(self.ranked, (hypothesis.score, hypothesis), key=lambda pair: -pair[0])
        del self.ranked[self._limit :]

    def is_done(self, best_total: float, request: RequestStep) -> bool:
        """True if early_stopping ends the search when the best live row has `best_total`.

        true: once there are enough hypotheses. "never": when the best row could not beat the worst of them
            even
        if all its further tokens were certain. false: when it would not beat it if it ended here.
        """
        if len(self.ranked) < self._limit:
            return False
        params = request.params
        if params.early_stopping is True:
            return True
        certain_end = params.early_stopping == "never" and params.length_penalty > 0
        # Totals are below 0 and only fall; divided by the most, as the longest output is, they rank highest.
        length = request.longest if certain_end else request.length
        reachable: float = best_total / length**params.length_penalty
        return self.ranked[-1][0] >= reachable


def best_hypotheses(searches: Iterable[FinishedHypotheses], count: int) -> list[Hypothesis]:
    """Returns the `count` best finished hypotheses of a request, best first.

    Hypotheses only lose ranks, so that one left out here is not returned in the end.
    """
    ranked = [pair for finished in searches for pair in finished.ranked]
    ranked.sort(key=lambda pair: -pair[0])
    return [hypothesis for _, hypothesis in ranked[:count]]


@dataclass(slots=True)
class Beams:
    """The state of a search with one set of beams; `totals` are those of its live rows, in order."""

    finished: FinishedHypotheses
    totals: list[float]

    def go_on(self, request: RequestStep, candidates: Sequence[Candidate]) -> Decision:
        """Ends and continues beams, given candidates in order of choice.

        Of the first num_beams candidates those that end become hypotheses; of all that do not end, the
        num_beams with the highest totals live on, or fewer if there are not so many.
        """
        params = request.params
        live = []
        for candidate in candidates[: params.num_beams]:
            reason = request.ending(candidate)
            if reason is None:
                live.append(candidate)
            else:
                self.finished.add(request.hypothesis(candidate, reason))
        live = _fill(live, candidates[params.num_beams :], request)
        self.totals = [candidate.total for candidate in live]
        if live and self.finished.is_done(live[0].total, request):
            live = []
        hypotheses = best_hypotheses([self.finished], params.num_return_sequences)
        return request.decision(list(enumerate(live)), hypotheses)


def _fill(live: Sequence[Candidate], spares: Sequence[Candidate], request: RequestStep) -> list[Candidate]:
    """Returns the num_beams best of `live` and of the `spares` that do not end, best first."""
    # To know whether one ends may need decoding text: the spares are checked in order of rank, as needed.
    ranked = [(candidate, True) for candidate in live] + [(candidate, False) for candidate in spares]
    ranked.sort(key=lambda pair: -pair[0].total)
    filled: list[Candidate] = []
    for candidate, lives in ranked:
        if len(filled) == request.params.num_beams:
            break
        if lives or request.ending(candidate) is None:
            filled.append(candidate)
    return filled
