"""Beam search: several hypotheses grow side by side, and the best continuations of all of them live on.

The rules are those of transformers 4.57.1; see `beams.py`. Scores are log-probabilities after the processors.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.beams import Beams, Candidate, RequestStep, SearchStrategy
from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.processors import adjust
from mindbatch.decoding.row import Row, row_error
from mindbatch.decoding.softmax import largest
from mindbatch.decoding.strategy import Decision

_NO_PENALTIES: Mapping[int, float] = {}


def processed_scores(
    request: RequestStep, parent: int, penalties: Mapping[int, float] = _NO_PENALTIES
) -> NDArray[np.float32] | None:
    """Log-probabilities [V] after row `parent`, less `penalties` by token, changed by the row's processors.

    None if those leave no token or fail, which is noted in the request's dead ends.
    """
    place = request.first + parent
    scores = request.raw.logits[place] - np.float32(request.raw.normalisers[place])
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
                    place = request.first + parent
                    _process(request, parent, _NO_PENALTIES, self._tokens[place], self._scores[place])

    def candidates(
        self,
        request: RequestStep,
        parents: Sequence[int],
        totals: Sequence[float],
        count: int,
        penalties: Mapping[int, float] = _NO_PENALTIES,
    ) -> list[Candidate]:
        """The `count` best continuations of rows `parents` of the request, best first, or all there are.

        `totals` are those rows' sums of scores. `penalties` are taken off tokens' log-probabilities before
        the processors; their number and `count` together must not be above `width`.
        """
        # Each penalised token makes way for one other at most, so that the best ones are among so many.
        width = count + len(penalties)
        places = request.first + np.asarray(parents)
        tokens, scores = self._tokens[places, :width], self._scores[places, :width]
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

    def name(self, params: DecodingParams) -> str | None:
        return "beam_search" if params.num_beams > 1 and params.greedy else None

    def deciders(self, requests: Sequence[RequestStep]) -> Iterable[Callable[[], Decision]]:
        best = BestTokens(requests, max(map(_count, requests)))
        return [partial(_decide, request, best) for request in requests]


def _decide(request: RequestStep, best: BestTokens) -> Decision:
    beams: Beams = request.group.state
    parents = range(len(request.group.rows))
    return beams.go_on(request, best.candidates(request, parents, beams.totals, _count(request)))


def _count(request: RequestStep) -> int:
    return request.fan_out * request.params.num_beams
