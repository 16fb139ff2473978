"""Repetition penalty and minimum lengths, by hand; untouched rows are not copied."""

from typing import Any

import numpy as np
import pytest

from mindbatch.decoding import DecodingParams, Row
from mindbatch.decoding.processors import adjust, forbid, penalise_repetition

LOGITS = np.array([2.0, -2.0, 0.0, 4.0], dtype=np.float32)


def row(prompt: list[int], output: list[int], eos: tuple[int, ...] = (3,), **params: Any) -> Row:
    return Row(DecodingParams(**params), prompt, output, eos, row_hash=1)


def test_penalty_divides_positive_and_multiplies_negative_scores_once() -> None:
    scores = penalise_repetition(LOGITS, np.array([0, 1, 0, 0]), 2.0)
    assert scores.tolist() == [1.0, -4.0, 0.0, 4.0]


def test_penalty_counts_prompt_and_output() -> None:
    scores = adjust(LOGITS, row([0, 0], [3], repetition_penalty=2.0))
    assert scores.tolist() == [1.0, -2.0, 0.0, 2.0]


def test_penalty_follows_a_growing_output() -> None:
    growing = row([0], [], repetition_penalty=2.0)
    adjust(LOGITS, growing)
    growing.output_token_ids.append(3)
    assert adjust(LOGITS, growing).tolist() == [1.0, -2.0, 0.0, 2.0]


def test_forbidden_tokens_outside_the_vocabulary_are_passed_over() -> None:
    assert forbid(LOGITS, (1, 4, 99)).tolist() == [2.0, -np.inf, 0.0, 4.0]
    assert forbid(LOGITS, (99,)).tolist() == LOGITS.tolist()


@pytest.mark.parametrize(
    ("output", "params", "may_end"),
    [
        ([1], {"min_length": 3}, True),
        ([], {"min_length": 3}, False),
        ([1], {"min_new_tokens": 2}, False),
        ([1, 1], {"min_new_tokens": 2}, True),
        ([1], {"min_length": 2, "min_new_tokens": 2}, False),
    ],
)
def test_no_end_before_the_minimum(output: list[int], params: dict[str, Any], may_end: bool) -> None:
    scores = adjust(LOGITS, row([0, 1], output, **params))
    assert np.isfinite(scores[3]) == may_end
    assert np.isfinite(scores[:3]).all()


def test_every_eos_token_is_forbidden() -> None:
    scores = adjust(LOGITS, row([0], [], eos=(1, 3), min_new_tokens=1))
    assert np.isneginf(scores).tolist() == [False, True, False, True]


@pytest.mark.parametrize("params", [{}, {"min_length": 1}, {"min_new_tokens": 0}])
def test_an_inactive_row_is_not_copied(params: dict[str, Any]) -> None:
    assert adjust(LOGITS, row([0], [], **params)) is LOGITS


def test_the_models_logits_are_not_changed() -> None:
    before = LOGITS.copy()
    adjust(LOGITS, row([0, 3], [], repetition_penalty=2.0, min_new_tokens=1))
    np.testing.assert_array_equal(LOGITS, before)
