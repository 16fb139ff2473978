"""Drafts: guessed as the row draws its own tokens, by random numbers of its own, or looked up in its text."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.draws import row_hash
from mindbatch.decoding.row import Draft, Row
from mindbatch.decoding.sampling import SamplingStrategy
from mindbatch.decoding.speculative import guess, propose
from mindbatch.decoding.strategy import GroupView
from mindbatch.io.errors import MindBatchError

LOGITS = np.array([[3, 4, 2, 5]], dtype=np.float32)


def row(key: str = "a", output: tuple[int, ...] = (1,), **params: Any) -> Row:
    return Row(DecodingParams(**params), [0, 3], list(output), (), row_hash(key))


def test_greedy_rows_are_given_the_likeliest_after_the_processors() -> None:
    assert guess([row()], LOGITS) == [(3, None)]
    assert guess([row(repetition_penalty=3.0)], LOGITS) == [(2, None)]  # penalises tokens 0, 1 and 3


def test_the_distribution_is_that_after_the_filters() -> None:
    [found] = guess([row(do_sample=True, top_k=2, suppress_tokens=[1])], LOGITS)
    assert found.probabilities is not None
    expected = np.array([np.exp(3), 0, 0, np.exp(5)])
    np.testing.assert_allclose(found.probabilities, expected / expected.sum(), rtol=1e-6)
    assert found.token_id in (0, 3)


def test_random_numbers_are_not_those_of_sampling() -> None:
    rows = [row(f"row {n}", do_sample=True) for n in range(200)]
    logits = np.zeros((200, 1000), np.float32)
    guessed = [found.token_id for found in guess(rows, logits)]
    decisions = SamplingStrategy().advance([GroupView([one]) for one in rows], logits)
    drawn = [decision.branches[0].choices[0].token_id for decision in decisions]
    assert sum(a == b for a, b in zip(guessed, drawn, strict=True)) < 5  # 0.2 expected


def test_a_row_is_given_in_a_batch_what_it_is_given_alone() -> None:
    rows = [row(f"row {n}", (1,) * (n + 1), do_sample=n % 2 == 1, seed=n) for n in range(8)]
    logits = np.random.default_rng(0).standard_normal((8, 50)).astype(np.float32)
    together = guess(rows, logits)
    for number, one in enumerate(rows):
        [alone] = guess([one], logits[number : number + 1])
        assert alone.token_id == together[number].token_id
        if one.params.do_sample:
            np.testing.assert_array_equal(alone.probabilities, together[number].probabilities)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_refused(bad: float) -> None:
    logits = np.repeat(LOGITS, 2, axis=0)
    logits[1, 2] = bad
    with pytest.raises(MindBatchError, match=r"model\.assistant"):
        guess([row(), row("b", do_sample=True)], logits)


def looking_up(prompt: list[int], output: list[int], longest: int = 2, eos: tuple[int, ...] = ()) -> Row:
    params = DecodingParams(prompt_lookup_num_tokens=3, max_matching_ngram_size=longest)
    return Row(params, prompt, output, eos, 0)


@pytest.mark.parametrize(
    ("prompt", "output", "longest", "count", "expected"),
    [
        ([1, 2, 3, 4, 5, 1, 2], [], 2, 3, (3, 4, 5)),
        ([1, 2, 3, 4], [9, 1, 2], 2, 3, (3, 4, 9)),  # across prompt and output
        ([5, 2, 7, 1, 2, 8, 1], [2], 2, 2, (8, 1)),  # the pair comes before the single token
        ([5, 2, 7, 1, 2, 8, 1], [2], 1, 2, (7, 1)),  # the first of several
        ([3, 3], [3], 2, 4, (3,)),  # no more than the text has
        ([1, 2], [3], 2, 3, None),
    ],
)
def test_what_is_drafted(
    prompt: list[int], output: list[int], longest: int, count: int, expected: tuple[int, ...] | None
) -> None:
    draft = propose(looking_up(prompt, output, longest), count)
    assert draft == (None if expected is None else Draft(expected))


@pytest.mark.parametrize(("eos", "expected"), [((8,), (7, 1)), ((6, 7), None), ((2,), (7, 1, 8))])
def test_it_stops_before_an_end_token(eos: tuple[int, ...], expected: tuple[int, ...] | None) -> None:
    draft = propose(looking_up([2, 7, 1, 8], [2], eos=eos), 3)
    assert draft == (None if expected is None else Draft(expected))


def looked_up(text: list[int], longest: int, count: int) -> tuple[int, ...] | None:
    """The rule by its letter: the longest n-grams first, each sought from the left."""
    for size in range(min(longest, len(text) - 1), 0, -1):
        for start in range(len(text) - size):
            if text[start : start + size] == text[-size:]:
                return tuple(text[start + size : start + size + count])
    return None


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=14),
    st.lists(st.integers(0, 2), max_size=6),
    st.integers(1, 5),
    st.integers(1, 4),
)
def test_as_the_rule_says(prompt: list[int], output: list[int], longest: int, count: int) -> None:
    draft = propose(looking_up(prompt, output, longest), count)
    expected = looked_up(prompt + output, longest, count)
    assert (None if draft is None else draft.token_ids) == expected
    assert draft is None or draft.probabilities is None
