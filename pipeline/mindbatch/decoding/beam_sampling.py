"""Beam sampling: beam search whose candidates are drawn at random instead of being the best ones.

The rules are those of transformers 4.57.1; see `beams.py`.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.beam_search import processed_scores
from mindbatch.decoding.beams import Beams, Candidate, RequestStep, SearchStrategy
from mindbatch.decoding.candidates import Candidates, draw_without_replacement
from mindbatch.decoding.draws import row_uniforms
from mindbatch.decoding.filters import sampling_candidates
from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.processors import renormalised
from mindbatch.decoding.strategy import Decision


class BeamSampling(SearchStrategy):
    """Draws continuations of a request's rows taken together, without replacement, by their sums of scores.

    Scores are log-probabilities after processors and filters. The n-th draw of a step spends the request's
    Philox number of sample n. Only the first num_beams drawn may end, however good the later ones are.
    """

    def name(self, params: DecodingParams) -> str | None:
        return "beam_sampling" if params.num_beams > 1 and not params.greedy else None

    def deciders(self, requests: Sequence[RequestStep]) -> Iterable[Callable[[], Decision]]:
        rows = [request.group.rows[0] for request in requests]
        draws = [range(request.fan_out * request.params.num_beams) for request in requests]
        places = [[(draw, row.step) for draw in own] for row, own in zip(rows, draws, strict=True)]
        drawn = zip(requests, row_uniforms(rows, places), strict=True)
        return [partial(_decide, request, numbers) for request, numbers in drawn]


def _decide(request: RequestStep, uniforms: NDArray[np.float64]) -> Decision:
    beams: Beams = request.group.state
    kept = [_kept(request, parent) for parent in range(len(beams.totals))]
    return beams.go_on(request, _drawn(kept, beams.totals, uniforms))


def _kept(request: RequestStep, parent: int) -> Candidates:
    """Selects the candidates that may follow row `parent`."""
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
    """A candidate for each of `uniforms`, or as many as are possible, in the order of the draws."""
    best = max(totals)
    # Less the best total: a term that all share changes no draw, and float32 is finer near 0.
    sums = [part.scores + np.float32(total - best) for part, total in zip(kept, totals, strict=True)]
    ends = np.cumsum([part.size for part in sums])
    drawn = []
    for place in draw_without_replacement(np.concatenate(sums), uniforms):
        parent = int(np.searchsorted(ends, place, side="right"))
        index = place - (ends[parent] - sums[parent].size)
        token = kept[parent].tokens(np.array([index]))[0]
        drawn.append(Candidate(parent, int(token), totals[parent] + float(kept[parent].scores[index])))
    return drawn
