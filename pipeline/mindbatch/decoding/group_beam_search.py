"""Group beam search: groups of beams search in turn, each kept off the tokens that those before it chose.

Source: Vijayakumar et al., "Diverse beam search", 2016, with Hamming diversity. The rules are those of the
last transformers that had it, 4.55 and 4.56 (`GenerationMixin._group_beam_search`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mindbatch.decoding.beam_search import BestTokens
from mindbatch.decoding.beams import (
    Candidate,
    FinishedHypotheses,
    RequestStep,
    SearchStrategy,
    best_hypotheses,
)
from mindbatch.decoding.choice import FinishReason
from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.strategy import Decision


@dataclass(slots=True)
class _Team:
    """One of a request's groups of beams: at most `size` live rows, and as many finished hypotheses.

    `totals` are the sums of scores of its live rows, in order; a team without any is done.
    """

    size: int
    finished: FinishedHypotheses
    totals: list[float]

    def go_on(self, request: RequestStep, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The candidates chosen to live on, from those that are possible, best first.

        Those that stop become hypotheses if they are among the `size` best candidates; of the rest the `size`
        best are chosen. They have no rows, and no totals, if the team is done or there is no more room.
        """
        chosen: list[tuple[Candidate, FinishReason | None]] = []
        for rank, candidate in enumerate(candidates):
            if len(chosen) == self.size:
                break
            reason = request.ending(candidate)
            if reason != "stop":
                chosen.append((candidate, reason))
            elif rank < self.size:
                self.finished.add(request.hypothesis(candidate, reason))
        self.totals = []
        if chosen and not self.finished.settled(candidates[0].total, request):
            for candidate, reason in chosen:
                if reason is None:
                    self.totals.append(candidate.total)
                else:
                    self.finished.add(request.hypothesis(candidate, reason))
        return [candidate for candidate, _ in chosen]


class GroupBeamSearch(SearchStrategy):
    """Searches with num_beam_groups groups of num_beams / num_beam_groups beams each.

    For each beam of an earlier group that goes on with a token, that token's log-probability is lowered by
    diversity_penalty in the same step; sums of scores hold these penalties. The best hypotheses of all groups
    together are returned.
    """

    def name(self, params: DecodingParams) -> str | None:
        return "group_beam_search" if params.num_beam_groups > 1 else None

    def begin(self, params: DecodingParams) -> Any:
        size = params.num_beams // params.num_beam_groups
        return [_Team(size, FinishedHypotheses(size), [0.0]) for _ in range(params.num_beam_groups)]

    def deciders(self, requests: Sequence[RequestStep]) -> Iterable[Callable[[], Decision]]:
        best = BestTokens(requests, max(map(_width, requests)))
        return [partial(_decide, request, best) for request in requests]


def _decide(request: RequestStep, best: BestTokens) -> Decision:
    teams: list[_Team] = request.group.state
    chosen_before: Counter[int] = Counter()
    live: list[tuple[int, Candidate]] = []
    first_row = 0
    for number, team in enumerate(teams):
        if not team.totals:
            chosen_before.update(_padding(request, team.size))
            continue
        parents = range(first_row, first_row + len(team.totals))
        if request.length > 1:  # before, the prompt's one row is every team's
            first_row = parents.stop
        penalties = {
            token: request.params.diversity_penalty * times for token, times in chosen_before.items()
        }
        count = request.fan_out * team.size
        chosen = team.go_on(request, best.candidates(request, parents, team.totals, count, penalties))
        chosen_before.update(candidate.token_id for candidate in chosen)
        live += enumerate(chosen[: len(team.totals)], start=number * team.size)
    finished = (team.finished for team in teams)
    return request.decision(live, best_hypotheses(finished, request.params.num_return_sequences))


def _padding(request: RequestStep, size: int) -> dict[int, int]:
    """Counts the tokens that a finished team's beams go on with, which later teams are kept off.

    transformers pads them, with the first end token unless another padding token is given.
    """
    return dict.fromkeys(request.group.rows[0].eos_token_ids[:1], size)


def _width(request: RequestStep) -> int:
    """The most tokens looked at after a row: the last team's candidates and all that may be penalised."""
    size: int = request.group.state[0].size
    return request.fan_out * size + request.params.num_beams - size
