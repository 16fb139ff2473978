"""Beam search, in groups too, and beam sampling: hypotheses grow side by side, and the best of all live on.

The rules are those of transformers 4.57.1; see `beams.py`. Scores are log-probabilities after the processors.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.beams import (
    Beams,
    Candidate,
    FinishedHypotheses,
    RequestStep,
    SearchStrategy,
    best_hypotheses,
)
from mindbatch.decoding.candidates import Candidates, draw_without_replacement
from mindbatch.decoding.filters import sampling_candidates
from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.processors import adjust, renormalised
from mindbatch.decoding.row import FinishReason, Row, row_error, row_uniforms
from mindbatch.decoding.softmax import largest
from mindbatch.decoding.strategy import Decision

_NO_PENALTIES: Mapping[int, float] = {}


def processed_scores(
    request: RequestStep, parent: int, penalties: Mapping[int, float] = _NO_PENALTIES
) -> NDArray[np.float32] | None:
    """Returns log-probabilities [V] after row `parent`, less `penalties` by token, changed by the row's
    processors.

    None if those leave no token or fail, which is noted in the request's dead ends.
    """
    number = request.first + parent
    scores = request.raw.logits[number] - np.float32(request.raw.normalisers[number])
    for token, penalty in penalties.items():
        scores[token] -= np.float32(penalty)
    try:
        return adjust(scores, request.group.rows[parent])
    except Exception as error:
        request.dead_ends.append(row_error(error, request.group.rows[parent].key))
        return None


class BestTokens:
    """For each row of a step its `width` best tokens.

    Where no processor is active, log-probabilities are not made for the whole vocabulary: raw logits rank it.
    """

    def __init__(self, requests: Sequence[RequestStep], width: int) -> None:
        raw = requests[0].raw
        self._tokens = np.stack([largest(row, width) for row in raw.logits])
        logits = np.take_along_axis(raw.logits, self._tokens, axis=1)
        self._scores: NDArray[np.float64] = logits - raw.normalisers[:, np.newaxis]
        for request in requests:
            for parent, row in enumerate(request.group.rows):
                if _may_change_scores(row):
                    number = request.first + parent
                    _process(request, parent, _NO_PENALTIES, self._tokens[number], self._scores[number])

    def candidates(
        self,
        request: RequestStep,
        parents: Sequence[int],
        totals: Sequence[float],
        count: int,
        penalties: Mapping[int, float] = _NO_PENALTIES,
    ) -> list[Candidate]:
        """Returns the `count` best continuations of rows `parents` of the request, best first, or all there
        are.

        `totals` are those rows' sums of scores. `penalties` are taken off tokens' log-probabilities before
        the processors; their number and `count` together must not be above `width`.
        """
        # Each penalised token makes way for one other at most, so that the best ones are among so many.
        width = count + len(penalties)
        numbers = request.first + np.asarray(parents)
        tokens, scores = self._tokens[numbers, :width], self._scores[numbers, :width]
        if penalties:
            for index, parent in enumerate(parents):
                row = request.group.rows[parent]
                # Less penalties, scores are no log-probabilities any more.
                if row.params.renormalize_logits or _may_change_scores(row):
                    _process(request, parent, penalties, tokens[index], scores[index])
                else:
                    scores[index] -= [penalties.get(token, 0.0) for token in tokens[index].tolist()]
        sums = scores + np.asarray(totals)[:, np.newaxis]
        # Stable: among equals the earlier row, then the better rank, as the sort of all continuations has it.
        order = np.argsort(-sums, axis=None, kind="stable")[:count]
        indices, ranks = np.divmod(order, sums.shape[1])
        return [
            Candidate(parents[index], int(tokens[index, rank]), float(sums[index, rank]))
            for index, rank in zip(indices, ranks, strict=True)
            if sums[index, rank] > -np.inf
        ]


def _may_change_scores(row: Row) -> bool:
    """True if the row's processors, which are not known before its first step, may do something."""
    return row.processors != () or row.constraint is not None


def _process(
    request: RequestStep,
    parent: int,
    penalties: Mapping[int, float],
    tokens: NDArray[np.int64],
    scores: NDArray[np.float64],
) -> None:
    """Puts the best tokens of row `parent` after its processors into `tokens`, with their `scores`."""
    processed = processed_scores(request, parent, penalties)
    if processed is None:
        scores[:] = -np.inf
        return
    tokens[:] = largest(processed, tokens.size)
    scores[:] = processed[tokens]


class BeamSearch(SearchStrategy):
    """Goes on with the num_beams likeliest continuations of a request's rows taken together.

    A request's first step, one row, branches into num_beams, or into as many as there are possible tokens.
    """

    def computed(self, requests: Sequence[RequestStep]) -> Sequence[BestTokens]:
        return [BestTokens(requests, max(map(_count, requests)))] * len(requests)

    def decide(self, request: RequestStep, computed: BestTokens) -> Decision:
        beams: Beams = request.group.state
        parents = range(len(request.group.rows))
        return beams.go_on(request, computed.candidates(request, parents, beams.totals, _count(request)))


def _count(request: RequestStep) -> int:
    return request.fan_out * request.params.num_beams


@dataclass(slots=True)
class _Team:
    """One of a request's groups of beams: at most `size` live rows, and as many finished hypotheses.

    `totals` are the sums of scores of its live rows, in order; a team without any is done.
    """

    size: int
    finished: FinishedHypotheses
    totals: list[float]

    def go_on(self, request: RequestStep, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Returns the candidates that continue, from those that are possible, best first.

        Those that stop become hypotheses if they are among the `size` best candidates; of the rest the `size`
        best are chosen. They have no rows, and no totals, if the team is done or no more tokens fit.
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
        if chosen and not self.finished.is_done(candidates[0].total, request):
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
    Source: Vijayakumar et al., "Diverse beam search", 2016, with Hamming diversity. The rules are those of
    the last transformers that had it, 4.55 and 4.56 (`GenerationMixin._group_beam_search`).
    """

    def begin(self, params: DecodingParams) -> Any:
        size = params.num_beams // params.num_beam_groups
        return [_Team(size, FinishedHypotheses(size), [0.0]) for _ in range(params.num_beam_groups)]

    def computed(self, requests: Sequence[RequestStep]) -> Sequence[BestTokens]:
        return [BestTokens(requests, max(map(_group_width, requests)))] * len(requests)

    def decide(self, request: RequestStep, computed: BestTokens) -> Decision:
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
            chosen = team.go_on(request, computed.candidates(request, parents, team.totals, count, penalties))
            chosen_before.update(candidate.token_id for candidate in chosen)
            live += enumerate(chosen[: len(team.totals)], start=number * team.size)
        finished = (team.finished for team in teams)
        return request.decision(live, best_hypotheses(finished, request.params.num_return_sequences))


def _padding(request: RequestStep, size: int) -> dict[int, int]:
    """Counts the tokens that a finished team's beams go on with, which later teams are kept off.

    transformers pads them, with the first end token unless another padding token is given.
    """
    return dict.fromkeys(request.group.rows[0].eos_token_ids[:1], size)


def _group_width(request: RequestStep) -> int:
    """Returns the maximum number of tokens considered after a row: the last team's candidates and all that
    may be penalised."""
    size: int = request.group.state[0].size
    return request.fan_out * size + request.params.num_beams - size


class BeamSampling(SearchStrategy):
    """Draws continuations of a request's rows taken together, without replacement, by their sums of scores.

    Scores are log-probabilities after processors and filters. The n-th draw of a step spends the request's
    Philox number of sample n. Only the first num_beams drawn may end, however good the later ones are.
    """

    def computed(self, requests: Sequence[RequestStep]) -> Sequence[NDArray[np.float64]]:
        rows, draws = [request.group.rows[0] for request in requests], map(_count, requests)
        draws_of_rows = [
            [(draw, row.step) for draw in range(count)] for row, count in zip(rows, draws, strict=True)
        ]
        return row_uniforms(rows, draws_of_rows)

    def decide(self, request: RequestStep, computed: NDArray[np.float64]) -> Decision:
        beams: Beams = request.group.state
        kept = [_kept(request, parent) for parent in range(len(beams.totals))]
        return beams.go_on(request, _drawn(kept, beams.totals, computed))


def _kept(request: RequestStep, parent: int) -> Candidates:
    scores = processed_scores(request, parent)
    if scores is None:
        return Candidates(np.empty(0, dtype=np.float32))
    left = sampling_candidates(scores, request.params, least=request.fan_out)
    if not request.params.renormalize_logits:
        return left
    tokens = left.tokens(np.arange(left.scores.size))
    return Candidates(renormalised(left.scores, request.params), tokens)


def _drawn(
    kept: Sequence[Candidates], totals: Sequence[float], uniforms: NDArray[np.float64]
) -> list[Candidate]:
    """Returns a candidate for each of `uniforms`, or as many as are possible, in the order of the draws."""
    best = max(totals)
    # Less the best total: a term that all share changes no draw, and float32 is finer near 0.
    sums = [part.scores + np.float32(total - best) for part, total in zip(kept, totals, strict=True)]
    ends = np.cumsum([part.size for part in sums])
    drawn = []
    for drawn_index in draw_without_replacement(np.concatenate(sums), uniforms):
        parent = int(np.searchsorted(ends, drawn_index, side="right"))
        index = drawn_index - (ends[parent] - sums[parent].size)
        token = kept[parent].tokens(np.array([index]))[0]
        drawn.append(Candidate(parent, int(token), totals[parent] + float(kept[parent].scores[index])))
    return drawn
