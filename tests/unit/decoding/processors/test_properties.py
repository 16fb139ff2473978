"""Rows keep nothing of what they were before; tests/numerics/test_decoding.py has whole outputs."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.processors import adjust
from mindbatch.decoding.row import NoTokenLeftError, Row

VOCABULARY, END = 6, 5
tokens = st.integers(0, VOCABULARY - 1)
prompts = st.lists(tokens, min_size=1, max_size=12)
seeds = st.integers(0, 2**32 - 1)


def parameters() -> st.SearchStrategy[dict[str, Any]]:
    words = st.lists(tokens, min_size=1, max_size=3).map(tuple)
    return st.fixed_dictionaries(
        {},
        optional={
            "repetition_penalty": st.floats(0.5, 2),
            "encoder_repetition_penalty": st.floats(0.5, 2),
            "frequency_penalty": st.floats(-2, 2),
            "no_repeat_ngram_size": st.integers(0, 4),
            "encoder_no_repeat_ngram_size": st.integers(0, 4),
            "bad_words_ids": st.lists(words, max_size=4),
            "sequence_bias": st.dictionaries(words, st.floats(-5, 5), max_size=4),
            "exponential_decay_length_penalty": st.tuples(st.integers(0, 5), st.floats(0.5, 2)),
        },
    )


@given(prompts, st.lists(tokens, max_size=12), st.integers(0, 12), seeds, parameters())
def test_a_row_keeps_nothing_of_what_it_was_before(
    prompt: list[int], output: list[int], before: int, seed: int, params: dict[str, Any]
) -> None:
    """A fork of a row that has come some way, and that row after it, get what rows made anew get."""
    scores = np.random.default_rng(seed).standard_normal(VOCABULARY).astype(np.float32)

    def make(so_far: list[int]) -> Row:
        return Row(DecodingParams(**params), prompt, so_far, (END,), row_hash=0)

    def result(row: Row) -> list[float] | None:
        try:
            return adjust(scores, row).tolist()
        except NoTokenLeftError:
            return None

    parent = make(output[:before])
    result(parent)
    twin = parent.fork()
    twin.output_token_ids[:] = output
    parent.output_token_ids += output
    assert result(twin) == result(make(output))
    assert result(parent) == result(make(output[:before] + output))
