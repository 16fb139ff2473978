"""Guesses at a row's next tokens: from the logits of an assistant model, or from the row's own text."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mindbatch.decoding.choice import Draft
from mindbatch.decoding.draws import row_uniforms
from mindbatch.decoding.filters import sampling_candidates
from mindbatch.decoding.processors import adjust
from mindbatch.decoding.row import Row
from mindbatch.decoding.softmax import softmax
from mindbatch.io.errors import MindBatchError

_DRAFT_STREAM = 2
"""Stream of the random numbers that guess tokens: they must not be those that verify them."""


class Guess(NamedTuple):
    """A token, and the distribution [V] that it was drawn from; None for a greedy row."""

    token_id: int
    probabilities: NDArray[np.float32] | None


def guess(rows: Sequence[Row], logits: NDArray[np.float32]) -> list[Guess | None]:
    """A guess after each of `rows` [S] from the assistant's logits [S, V], chosen as the row's own are.

    None where that fails, or no token is left: what is guessed may never come, so that it is no error yet.

    Raises MindBatchError when logits are not finite numbers.
    """
    likeliest = logits.argmax(axis=1)
    if not np.isfinite(logits[np.arange(len(rows)), likeliest]).all():
        raise MindBatchError(
            "logits of model.assistant: NaN or infinite; its weights or its number format do not fit"
        )
    places = [[] if row.params.greedy else [(row.sample_index, row.step)] for row in rows]
    numbers = row_uniforms(rows, places, _DRAFT_STREAM)
    guesses: list[Guess | None] = []
    for row, own, best, number in zip(rows, logits, likeliest, numbers, strict=True):
        try:
            guesses.append(_guess(row, own, int(best), number))
        except Exception:  # if the row comes as far as this, its own step fails in the same way and says so
            guesses.append(None)
    return guesses


def _guess(row: Row, logits: NDArray[np.float32], likeliest: int, number: NDArray[np.float64]) -> Guess:
    """`number` [1] is what to draw with; none for a greedy row."""
    scores = adjust(logits, row)
    if row.params.greedy:
        return Guess(likeliest if scores is logits else int(scores.argmax()), None)
    candidates = sampling_candidates(scores, row.params)
    return Guess(int(candidates.draw(number)[0]), softmax(candidates.dense(logits.size)))


def propose(row: Row, count: int) -> Draft | None:
    """At most `count` tokens, up to an end token, or None if the row's last token is new in it.

    They are those after the first occurrence of the row's last n-gram, for the largest n that has one and is
    at most max_matching_ngram_size. Source: Saxena, "Prompt Lookup Decoding", 2023, with transformers' choice
    among occurrences (4.57, generation/candidate_generator.py).
    """
    length = len(row.prompt_token_ids) + row.step
    text = np.fromiter(chain(row.prompt_token_ids, row.output_token_ids), np.int64, length)
    end = _first_occurrence(text, row.params.max_matching_ngram_size)
    if end is None:
        return None
    tokens = text[end : end + count]
    stops = np.flatnonzero(np.isin(tokens, row.eos_token_ids))
    if stops.size > 0:
        tokens = tokens[: stops[0]]
    return Draft(tuple(tokens.tolist())) if tokens.size > 0 else None


def _first_occurrence(text: NDArray[np.int64], longest: int) -> int | None:
    """The place after the first earlier occurrence of the text's last n-gram, n at most `longest`."""
    lasts = np.flatnonzero(text[:-1] == text[-1])  # where an occurrence may have its last token
    size = 1
    while size < longest and lasts.size > 0:
        longer = lasts[lasts >= size]
        longer = longer[text[longer - size] == text[-1 - size]]
        if longer.size == 0:
            break
        lasts, size = longer, size + 1
    return int(lasts[0]) + 1 if lasts.size > 0 else None
