"""Greedy decoding and sampling: each sequence goes on with one token, chosen for it alone."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.filters import sampling_candidates
from mindbatch.decoding.params import DecodingParams
from mindbatch.decoding.philox import uniform
from mindbatch.decoding.processors import adjust
from mindbatch.decoding.row import RawScores, Row
from mindbatch.decoding.strategy import Branch, Decision, GroupView, guarded


class SamplingStrategy:
    """Greedy takes the likeliest token, the lowest id among equals; sampling spends a Philox number on each.

    A request's first step, one row without output, branches into its num_return_sequences samples.
    """

    searches = False
    needs_hidden = False

    def name(self, params: DecodingParams) -> str | None:
        """See `Strategy.name`."""
        return "greedy" if params.greedy else "sampling"

    def width(self, params: DecodingParams) -> int:
        """See `Strategy.width`."""
        return params.num_return_sequences

    def begin(self, params: DecodingParams) -> Any:
        """See `Strategy.begin`."""
        return None

    def advance(self, groups: Sequence[GroupView], logits: NDArray[np.float32]) -> list[Decision]:
        """See `Strategy.advance`. Raises MindBatchError when a row's logits are not finite numbers."""
        return sample(groups, logits, self.width)


def sample(
    groups: Sequence[GroupView], logits: NDArray[np.float32], width: Callable[[DecodingParams], int]
) -> list[Decision]:
    """A branch for each row of each group; the first row of a request branches into `width` of them."""
    rows = [row for group in groups for row in group.rows]
    raw = RawScores(rows, logits)
    samples = [indices for group in groups for indices in _samples(group, width)]
    uniforms = _uniforms(rows, samples)
    decisions = []
    first = 0
    for group in groups:
        places = slice(first, first + len(group.rows))
        decide = partial(_decide, group, raw, first, samples[places], uniforms[places])
        decisions.append(guarded(group, decide))
        first += len(group.rows)
    return decisions


def _decide(
    group: GroupView,
    raw: RawScores,
    first: int,
    samples: Sequence[Sequence[int]],
    uniforms: Sequence[NDArray[np.float64]],
) -> Decision:
    """One request, whose logits begin at row `first`, with the samples and numbers of each of its rows."""
    branches: list[Branch] = []
    for parent, row in enumerate(group.rows):
        place = first + parent
        tokens = _tokens(row, raw, place, uniforms[parent])
        chosen = zip(samples[parent], tokens, strict=True)
        branches += [Branch(parent, index, (raw.choice(place, token),)) for index, token in chosen]
    return Decision(branches)


def _samples(group: GroupView, width: Callable[[DecodingParams], int]) -> list[Sequence[int]]:
    """For each row of the group, the sample indices of the branches it gets."""
    if len(group.rows) == 1 and group.rows[0].step == 0:
        return [range(width(group.rows[0].params))]
    return [(row.sample_index,) for row in group.rows]


def _tokens(row: Row, raw: RawScores, place: int, uniforms: NDArray[np.float64]) -> list[int]:
    """A token after the row for each uniform number, or the likeliest one.

    Rows are taken one by one: a row's scores stay in the core's cache, and no other row can touch its result.
    """
    logits = raw.logits[place]
    scores = adjust(logits, row)
    if row.params.greedy:
        return [int(raw.likeliest[place] if scores is logits else scores.argmax())]
    normaliser = float(raw.normalisers[place]) if scores is logits else None
    drawn: list[int] = sampling_candidates(scores, row.params, normaliser=normaliser).draw(uniforms).tolist()
    return drawn


def _uniforms(rows: Sequence[Row], samples: Sequence[Sequence[int]]) -> list[NDArray[np.float64]]:
    """For each row, a uniform number for each of its samples; none for a greedy row."""
    counts = [0 if row.params.greedy else len(indices) for row, indices in zip(rows, samples, strict=True)]
    if not any(counts):
        return [np.empty(0)] * len(rows)
    places = [
        (row.params.seed, row.row_hash, sample, row.step)
        for row, indices, count in zip(rows, samples, counts, strict=True)
        for sample in indices[:count]
    ]
    seeds, hashes, indices, steps = zip(*places, strict=True)
    return np.split(uniform(seeds, hashes, indices, steps), np.cumsum(counts)[:-1])
