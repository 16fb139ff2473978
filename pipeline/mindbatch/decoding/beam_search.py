"""Beam search: several hypotheses grow side by side, and the best continuations of all of them live on.

The rules are those of transformers 4.57.1; see `beams.py`.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.beam_scores import BestTokens
from mindbatch.decoding.beams import Beams, OneSetOfBeams, RequestStep, request_steps
from mindbatch.decoding.raw_scores import RawScores
from mindbatch.decoding.strategy import Decision, GroupView, guarded


class BeamSearch(OneSetOfBeams):
    """Goes on with the num_beams likeliest continuations of a request's rows taken together.

    A request's first step, one row, branches into num_beams, or into as many as there are possible tokens.
    """

    def advance(self, groups: Sequence[GroupView], logits: NDArray[np.float32]) -> list[Decision]:
        """See `Strategy.advance`. Raises MindBatchError for logits that are not finite."""
        raw = RawScores([row for group in groups for row in group.rows], logits)
        requests = list(request_steps(groups, raw))
        best = BestTokens(requests, raw, max(_count(request) for request in requests))
        return [guarded(request.group, partial(_decide, request, best)) for request in requests]


def _decide(request: RequestStep, best: BestTokens) -> Decision:
    beams: Beams = request.group.state
    parents = range(len(request.group.rows))
    return beams.go_on(request, best.candidates(request, parents, beams.totals, _count(request)))


def _count(request: RequestStep) -> int:
    return request.fan_out * request.params.num_beams
