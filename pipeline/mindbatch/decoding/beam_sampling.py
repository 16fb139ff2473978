"""Beam sampling: beam search whose candidates are drawn at random instead of being the best ones.

The rules are those of transformers 4.57.1; see `beams.py`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.beam_scores import processed_scores
from mindbatch.decoding.beams import Beams, Candidate, RequestStep, request_steps
from mindbatch.decoding.draw import draw_without_replacement
from mindbatch.decoding.filters import sampling_candidates
from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.philox import uniform
from mindbatch.decoding.processors import renormalised
from mindbatch.decoding.raw_scores import RawScores
from mindbatch.decoding.strategy import Decision, GroupView


class BeamSampling:
    """Draws continuations of a request's rows taken together, without replacement, by their sums of scores.

    Scores are log-probabilities after processors and filters. The n-th draw of a step spends the request's
    Philox number of sample n. Only the first num_beams drawn may end, however good the later ones are.
    """

    searches = True
    needs_hidden = False

    def width(self, params: DecodingParams) -> int:
        """See `Strategy.width`."""
        return params.num_beams

    def begin(self, params: DecodingParams) -> Any:
        """See `Strategy.begin`."""
        return Beams.begin(params)

    def advance(self, groups: Sequence[GroupView], logits: NDArray[np.float32]) -> list[Decision]:
        """See `Strategy.advance`. Raises MindBatchError for logits that are not finite and dead ends."""
        raw = RawScores([row for group in groups for row in group.rows], logits)
        return [_decide(request) for request in request_steps(groups, raw)]


def _decide(request: RequestStep) -> Decision:
    beams: Beams = request.group.state
    kept = [_kept(request, parent) for parent in range(len(beams.totals))]
    return beams.go_on(request, _drawn(request, kept, beams.totals))


def _kept(request: RequestStep, parent: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Tokens that may follow row `parent`, and their scores."""
    scores = processed_scores(request, parent)
    if scores is None:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
    left = sampling_candidates(scores, request.params, min_tokens_to_keep=request.fan_out)
    tokens = left.tokens(np.arange(left.scores.size))
    return tokens, renormalised(left.scores, request.params)


def _drawn(
    request: RequestStep,
    kept: Sequence[tuple[NDArray[np.int64], NDArray[np.float32]]],
    totals: Sequence[float],
) -> list[Candidate]:
    """As many candidates as the request looks at, or as are possible, in the order of the draws."""
    best = max(totals)
    sums = [scores + np.float32(total - best) for (_, scores), total in zip(kept, totals, strict=True)]
    ends = np.cumsum([part.size for part in sums])
    drawn = []
    for place in draw_without_replacement(np.concatenate(sums), _uniforms(request)):
        parent = int(np.searchsorted(ends, place, side="right"))
        tokens, scores = kept[parent]
        index = place - (ends[parent] - tokens.size)
        drawn.append(Candidate(parent, int(tokens[index]), totals[parent] + float(scores[index])))
    return drawn


def _uniforms(request: RequestStep) -> NDArray[np.float64]:
    """A number for each draw."""
    row = request.group.rows[0]
    draws = np.arange(request.fan_out * row.params.num_beams)
    return uniform(row.params.seed, row.row_hash, draws, row.step)
