"""Greedy decoding, sampling, sample-and-rank: each sequence goes on with one token, chosen for it alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.draws import Draw, draw_tokens
from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.processors import adjust
from mindbatch.decoding.row import RawScores, Row, row_uniforms
from mindbatch.decoding.softmax import Summary
from mindbatch.decoding.strategy import Branch, Decision, DecodingStrategy, GroupView, Hypothesis, guarded

DrawnTokens = list[int] | Exception
"""A token for each uniform number of a row, one if it is greedy; or why there are none."""
_TOGETHER = 64
"""Rows whose changed scores, copies of V numbers each, are kept at a time."""


class SamplingStrategy(DecodingStrategy):
    """Greedy takes the likeliest token, the lowest id among equals; sampling spends a Philox number on each.

    A request's first step, one row without output, branches into its num_return_sequences samples. An error
    of a row is raised: nothing has a state here, so that the engine can let each request decide alone.
    """

    searches = False

    def width(self, params: DecodingParams) -> int:
        return params.num_return_sequences

    def advance(
        self, groups: Sequence[GroupView], logits: NDArray[np.float32], summary: Summary = None
    ) -> list[Decision]:
        rows = [row for group in groups for row in group.rows]
        samples = [indices for group in groups for indices in self._samples(group)]
        draws = [[(sample, row.step) for sample in own] for row, own in zip(rows, samples, strict=True)]
        likeliest, normalisers, tokens = _tokens(rows, logits, summary, row_uniforms(rows, draws))
        raw = RawScores(rows, logits, likeliest, normalisers)
        decisions, first = [], 0
        for group in groups:
            part = slice(first, first + len(group.rows))
            decisions.append(_decide(raw, first, samples[part], tokens[part]))
            first += len(group.rows)
        return decisions

    def _samples(self, group: GroupView) -> list[Sequence[int]]:
        """Returns the sample indices of the branches of each row of the group."""
        if len(group.rows) == 1 and group.rows[0].step == 0:
            return [range(self.width(group.rows[0].params))]
        return [(row.sample_index,) for row in group.rows]


def _decide(
    raw: RawScores, first: int, samples: Sequence[Sequence[int]], tokens: Sequence[DrawnTokens]
) -> Decision:
    """Decides for a request whose logits begin at row `first`, from the samples and tokens of its rows."""
    branches: list[Branch] = []
    for parent, (indices, drawn) in enumerate(zip(samples, tokens, strict=True)):
        if isinstance(drawn, Exception):
            raise drawn
        chosen = zip(indices, drawn, strict=True)
        branches += [Branch(parent, index, (raw.choice(first + parent, token),)) for index, token in chosen]
    return Decision(branches)


def _tokens(
    rows: Sequence[Row],
    logits: NDArray[np.float32],
    summary: Summary,
    uniforms: Sequence[NDArray[np.float64]],
) -> tuple[NDArray[np.int64], NDArray[np.float64], list[DrawnTokens]]:
    """Returns the likeliest tokens and normalisers of `RawScores`, and the next tokens of each row."""
    parts, tokens = [], []
    for start in range(0, len(rows), _TOGETHER):
        some = slice(start, start + _TOGETHER)
        choices = [*map(_choice, rows[some], logits[some], uniforms[some])]
        draws = [one if isinstance(one, Draw) else None for one in choices]
        drawn = draw_tokens(logits[some], draws, None if summary is None else summary[some])
        parts.append((drawn.likeliest, drawn.normalisers))
        for one, row_tokens, best in zip(choices, drawn.tokens, drawn.likeliest.tolist(), strict=True):
            tokens.append([best] if one is None else row_tokens if isinstance(one, Draw) else one)
    likeliest, normalisers = zip(*parts, strict=True)
    return np.concatenate(likeliest), np.concatenate(normalisers), tokens


def _choice(
    row: Row, logits: NDArray[np.float32], uniforms: NDArray[np.float64]
) -> Draw | DrawnTokens | None:
    """Returns the row's next tokens, or the draw that chooses them; None for its likeliest token."""
    try:
        scores = adjust(logits, row)
    except Exception as error:
        return error
    if not row.params.greedy:
        return Draw(None if scores is logits else scores, row.params, uniforms)
    return None if scores is logits else [int(scores.argmax())]


class SampleAndRank(SamplingStrategy):
    """Draws best_of samples as sampling does and returns the best num_return_sequences.

    A sample's score is its log-probability under the model's raw logits, divided by tokens**length_penalty;
    the earlier sample wins among equals.
    Source: Adiwardana et al., "Towards a human-like open-domain chatbot", 2020, section 2.4.
    """

    searches = True

    def width(self, params: DecodingParams) -> int:
        return params.best_of or 1

    def begin(self, params: DecodingParams) -> Any:
        """Starts without ended samples; the state has them with their scores, by sample index."""
        return dict[int, tuple[float, Hypothesis]]()

    def advance(
        self, groups: Sequence[GroupView], logits: NDArray[np.float32], summary: Summary = None
    ) -> list[Decision]:
        sampled = super().advance(groups, logits, summary)
        both = zip(groups, sampled, strict=True)
        return [guarded(group, _ranked, group, decision) for group, decision in both]


def _ranked(group: GroupView, sampled: Decision) -> Decision:
    """Takes the samples that end out of the request's branches."""
    if sampled.error is not None:
        return sampled
    ended: dict[int, tuple[float, Hypothesis]] = group.state
    params = group.rows[0].params
    live = []
    for branch in sampled.branches:
        [choice] = branch.choices
        reason = group.ending(branch.parent, choice.token_id)
        if reason is None:
            live.append(branch)
            continue
        row = group.rows[branch.parent]
        score = (row.cumulative_logprob + choice.logprob) / (row.step + 1) ** params.length_penalty
        ended[branch.sample_index] = (score, Hypothesis.after(row, choice, reason, score))
    if live:
        return Decision(live, kept=[hypothesis for _, hypothesis in ended.values()])
    # By sample index among equals: samples may end in any order, and the result must not depend on it.
    ranked = [ended[index] for index in sorted(ended, key=lambda index: (-ended[index][0], index))]
    return Decision([], results=[hypothesis for _, hypothesis in ranked[: params.num_return_sequences]])
