"""Draws the rows of the batch, peers and serve benchmarks: random prompts, and lengths of answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

PROMPT_TOKENS = (8, 200)
ANSWER_TOKENS = (8, 128)
MEDIAN_ANSWER, ANSWER_SPREAD = 36.0, 0.8


@dataclass(frozen=True)
class BenchRow:
    """One row: its prompt, and the tokens that are wanted of it."""

    prompt: list[int]
    answer_tokens: int

    def to_json(self) -> dict[str, Any]:
        """As a worker gets it."""
        return asdict(self)


def make_rows(count: int, vocab_size: int, seed: int = 0, variant: int = 0) -> list[BenchRow]:
    """Rows in no order: prompts of lengths uniform over PROMPT_TOKENS, answers of lengths that are log-normal
    (median 36, sigma 0.8) and clipped to ANSWER_TOKENS.

    variant: another one has the same lengths and other tokens, so that nothing of it is cached.
    """
    generator = np.random.default_rng(seed)
    prompts = generator.integers(PROMPT_TOKENS[0], PROMPT_TOKENS[1] + 1, count)
    drawn = generator.lognormal(np.log(MEDIAN_ANSWER), ANSWER_SPREAD, count)
    answers = np.clip(np.rint(drawn), *ANSWER_TOKENS).astype(int)
    words = np.random.default_rng((seed, variant))
    return [
        BenchRow(words.integers(0, vocab_size, size).tolist(), int(answer))
        for size, answer in zip(prompts, answers, strict=True)
    ]


def sorted_batches(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Returns the indices of rows in batches of `size`, sorted by the lengths of their prompts."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    return [order[first : first + size] for first in range(0, len(order), size)]
