"""Greedy decoding and sampling: each sequence goes on with one token, chosen for it alone."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.draw import draw
from mindbatch.decoding.filters import sampling_candidates
from mindbatch.decoding.logprobs import top_logprobs
from mindbatch.decoding.philox import uniform
from mindbatch.decoding.processors import adjust
from mindbatch.decoding.row import Row
from mindbatch.decoding.softmax import log_normalisers
from mindbatch.decoding.strategy import Branch, GroupView
from mindbatch.errors import MindBatchError


class SamplingStrategy:
    """Greedy takes the likeliest token, the lowest id among equals; sampling spends a Philox number on each.

    A request's first step, one row without output, branches into its num_return_sequences samples.
    """

    def advance(self, groups: Sequence[GroupView], logits: NDArray[np.float32]) -> list[list[Branch]]:
        """See `Strategy.advance`. Raises MindBatchError when a row's logits are not finite numbers."""
        rows = [row for group in groups for row in group.rows]
        samples = [indices for group in groups for indices in _samples(group)]
        likeliest = logits.argmax(axis=1)
        normalisers = log_normalisers(logits, likeliest)
        _refuse_not_finite(rows, normalisers)
        chosen = _choose(rows, samples, logits, likeliest)
        branched: list[list[Branch]] = []
        place = 0
        for group in groups:
            branches: list[Branch] = []
            for parent, row in enumerate(group.rows):
                choices = zip(samples[place], chosen[place], strict=True)
                scored = logits[place], float(normalisers[place])
                branches += [_branch(parent, sample, token, row, *scored) for sample, token in choices]
                place += 1
            branched.append(branches)
        return branched


def _samples(group: GroupView) -> list[Sequence[int]]:
    """For each row of the group, the sample indices of the branches it gets."""
    if len(group.rows) == 1 and group.rows[0].step == 0:
        return [range(group.rows[0].params.num_return_sequences)]
    return [(row.sample_index,) for row in group.rows]


def _choose(
    rows: Sequence[Row],
    samples: Sequence[Sequence[int]],
    logits: NDArray[np.float32],
    likeliest: NDArray[np.int64],
) -> list[list[int]]:
    """For each row, a token for each of its samples.

    Rows are taken one by one: a row's scores stay in the core's cache, and no other row can touch its result.
    """
    uniforms = _uniforms(rows, samples)
    chosen = []
    for row, numbers, raw, best in zip(rows, uniforms, logits, likeliest, strict=True):
        scores = adjust(raw, row)
        if not row.params.greedy:
            candidates = sampling_candidates(scores, row.params)
            chosen.append(candidates.tokens(draw(candidates.scores, numbers)).tolist())
        else:
            chosen.append([int(best if scores is raw else scores.argmax())])
    return chosen


def _uniforms(rows: Sequence[Row], samples: Sequence[Sequence[int]]) -> list[NDArray[np.float64]]:
    """For each row, a uniform number for each of its samples; none for a greedy row."""
    counts = [0 if row.params.greedy else len(indices) for row, indices in zip(rows, samples, strict=True)]
    numbers = np.empty(0)
    if any(counts):
        places = [
            (row.params.seed, row.row_hash, sample, row.step)
            for row, indices, count in zip(rows, samples, counts, strict=True)
            for sample in indices[:count]
        ]
        numbers = uniform(*zip(*places, strict=True))
    return np.split(numbers, np.cumsum(counts)[:-1])


def _branch(
    parent: int, sample: int, token: int, row: Row, logits: NDArray[np.float32], normaliser: float
) -> Branch:
    count = row.params.logprobs
    top = None if count is None else top_logprobs(logits, normaliser, token, count)
    return Branch(parent, sample, token, float(logits[token]) - normaliser, top)


def _refuse_not_finite(rows: Sequence[Row], normalisers: NDArray[np.float64]) -> None:
    faults = [
        f"logits of row hash {row.row_hash}, sample {row.sample_index}, step {row.step}: NaN or infinite; "
        "the model's weights or its number format do not fit"
        for row, normaliser in zip(rows, normalisers, strict=True)
        if not np.isfinite(normaliser)
    ]
    if faults:
        raise MindBatchError(faults)
