"""Scores that beam searches add up: log-probabilities after the processors, and the best tokens by them."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.beams import Candidate, RequestStep
from mindbatch.decoding.processors import adjust
from mindbatch.decoding.raw_scores import RawScores
from mindbatch.decoding.row import Row
from mindbatch.decoding.selection import largest, largest_of_rows

_NONE: Mapping[int, float] = {}


def log_probabilities(raw: RawScores, place: int) -> NDArray[np.float32]:
    """Of every token after the row at `place`: [V], a new array."""
    scores: NDArray[np.float32] = raw.logits[place] - np.float32(raw.normalisers[place])
    return scores


class BestTokens:
    """For each row of a step its `width` best tokens.

    Where no processor is active, log-probabilities are not made for the whole vocabulary: raw logits rank it.
    """

    def __init__(self, rows: Sequence[Row], raw: RawScores, width: int) -> None:
        self._rows, self._raw, self._width = rows, raw, width
        self._tokens = largest_of_rows(raw.logits, width)
        logits = np.take_along_axis(raw.logits, self._tokens, axis=1)
        self._scores: NDArray[np.float64] = logits - raw.normalisers[:, np.newaxis]
        self._processed = [
            adjust(scores, row) is not scores for scores, row in zip(raw.logits, rows, strict=True)
        ]
        for place in np.flatnonzero(self._processed):
            self._tokens[place], self._scores[place] = self._process(place, width)

    def candidates(
        self,
        request: RequestStep,
        parents: Sequence[int],
        totals: Sequence[float],
        count: int,
        penalties: Mapping[int, float] = _NONE,
    ) -> list[Candidate]:
        """The `count` best continuations of the request's rows `parents`, best first, or all that are possible.

        `totals` are those rows' sums of scores. `penalties` are taken off tokens' log-probabilities before
        the processors; their number and `count` together must not be above the step's `width`.
        """
        # Each penalised token makes way for one other at most, so that the best ones are among so many.
        width = count + len(penalties)
        assert width <= self._width
        places = request.first + np.asarray(parents)
        tokens, scores = self._tokens[places, :width], self._scores[places, :width]
        if penalties:
            scores -= [[penalties.get(token, 0.0) for token in row] for row in tokens.tolist()]
            for index, place in enumerate(places):
                if self._processed[place]:
                    tokens[index], scores[index] = self._process(place, width, penalties)
        sums = scores + np.asarray(totals)[:, np.newaxis]
        order = np.argsort(-sums, axis=None, kind="stable")[:count]
        indices, ranks = np.divmod(order, sums.shape[1])
        return [
            Candidate(parents[index], int(tokens[index, rank]), float(sums[index, rank]))
            for index, rank in zip(indices, ranks, strict=True)
            if sums[index, rank] > -np.inf
        ]

    def _process(
        self, place: int, width: int, penalties: Mapping[int, float] = _NONE
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The row's `width` best tokens and their scores after its processors."""
        scores = log_probabilities(self._raw, place)
        for token, penalty in penalties.items():
            scores[token] -= np.float32(penalty)
        scores = adjust(scores, self._rows[place])
        tokens = largest(scores, width)
        return tokens, scores[tokens]
