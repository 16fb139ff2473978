"""Guessing: chosen as the row's own tokens are, with random numbers of its own."""

from typing import Any

import numpy as np
import pytest

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.draws import row_hash
from mindbatch.decoding.row import Row
from mindbatch.decoding.sampling import SamplingStrategy
from mindbatch.decoding.speculative import guess
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


def test_tokens_are_drawn_from_it() -> None:
    rows = [row(f"row {n}", do_sample=True) for n in range(2000)]
    guesses = guess(rows, np.repeat(LOGITS, len(rows), axis=0))
    shares = np.bincount([found.token_id for found in guesses], minlength=4) / len(rows)
    np.testing.assert_allclose(shares, [0.0871, 0.2369, 0.0321, 0.6439], atol=0.04)


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
