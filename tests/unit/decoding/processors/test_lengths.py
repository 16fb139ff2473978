"""Minimum lengths, forced tokens and the growing score of the end, by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.processors import adjust
from mindbatch.decoding.row import Row

Adjusted = Callable[..., list[float]]
Forbidden = Callable[..., set[int]]
NEVER = -np.inf
SCORES = [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("output", "params", "expected"),
    [
        ([1], {"min_length": 3}, set()),
        ([], {"min_length": 3}, {7}),
        ([1], {"min_new_tokens": 2}, {7}),
        ([1, 1], {"min_new_tokens": 2}, set()),
        ([1], {"min_length": 2, "min_new_tokens": 2}, {7}),
    ],
)
def test_no_end_before_the_minimum(
    output: list[int], params: dict[str, Any], expected: set[int], forbidden: Forbidden
) -> None:
    assert forbidden([0, 1], output, **params) == expected


def test_every_end_token_of_the_row_is_forbidden_if_the_vocabulary_has_it(forbidden: Forbidden) -> None:
    assert forbidden([0], [], eos=(1, 3, 99), min_new_tokens=1) == {1, 3}


def test_the_first_token_is_forced_after_any_prompt(adjusted: Adjusted) -> None:
    assert adjusted([0], [], SCORES, forced_bos_token_id=2) == [NEVER, NEVER, 0, NEVER]
    assert adjusted([0, 1, 0], [], SCORES, forced_bos_token_id=2) == [NEVER, NEVER, 0, NEVER]
    assert adjusted([0], [2], SCORES, forced_bos_token_id=2) == SCORES


@pytest.mark.parametrize(
    ("output", "limits", "forced"),
    [
        ([1], {"max_new_tokens": 2}, True),
        ([], {"max_new_tokens": 2}, False),
        ([1], {"max_new_tokens": 3}, False),
        ([], {"max_length": 4}, True),
        ([1], {"max_length": 5, "max_new_tokens": 9}, True),
        ([], {}, False),
        ([1] * 127, {}, True),  # 128 new tokens are the default
    ],
)
def test_the_last_token_is_forced(
    output: list[int], limits: dict[str, int], forced: bool, adjusted: Adjusted
) -> None:
    expected = [NEVER, 0, 0, NEVER] if forced else SCORES
    assert adjusted([0, 1, 0], output, SCORES, forced_eos_token_id=[1, 2], **limits) == expected


@pytest.mark.parametrize(("max_tokens", "forced"), [(4, False), (3, True), (2, False)])
def test_the_rows_own_limit_counts_most(max_tokens: int, forced: bool) -> None:
    scores = np.array(SCORES, dtype=np.float32)
    params = DecodingParams(forced_eos_token_id=1, max_new_tokens=9)
    row = Row(params, [0], [0], (), row_hash=1, max_tokens=max_tokens)
    assert bool(np.isneginf(adjust(scores, row)[0])) == forced
    assert bool(np.isneginf(adjust(scores, row.fork())[0])) == forced


def test_a_forced_end_comes_before_a_minimum_and_after_a_forced_beginning(adjusted: Adjusted) -> None:
    params = {"forced_eos_token_id": 3, "forced_bos_token_id": 1, "max_length": 2, "min_length": 2}
    assert adjusted([0], [], SCORES, eos=(3,), **params) == [NEVER, NEVER, NEVER, 0]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([], [1, 4, -2]),
        ([1, 1], [1, 4, -2]),  # the start itself
        ([1, 1, 1], [1, 8, 0]),  # s + |s| * (2 - 1)
        ([1, 1, 1, 1], [1, 16, 4]),  # s + |s| * (4 - 1)
    ],
)
def test_the_end_gains_score_past_the_start(
    output: list[int], expected: list[float], adjusted: Adjusted
) -> None:
    decay = {"exponential_decay_length_penalty": (2, 2.0)}
    assert adjusted([0] * 5, output, [1, 4, -2], eos=(1, 2, 99), **decay) == expected


def test_a_factor_below_1_takes_score_off(adjusted: Adjusted) -> None:
    decay = {"exponential_decay_length_penalty": (0, 0.5)}
    assert adjusted([0], [0], [1, 4, -2], eos=(1, 2), **decay) == [1, 2, -3]


@pytest.mark.filterwarnings("error")
def test_a_forbidden_end_stays_forbidden(adjusted: Adjusted) -> None:
    decay = {"exponential_decay_length_penalty": (0, 2.0)}
    assert adjusted([0], [0], [1, 4], eos=(1,), min_new_tokens=2, **decay) == [1, NEVER]


@pytest.mark.filterwarnings("error")
def test_the_gain_stays_a_number(adjusted: Adjusted) -> None:
    decay = {"exponential_decay_length_penalty": (0, 1e6)}
    largest = float(np.finfo(np.float32).max)
    assert adjusted([0], [0] * 100, [1, 4, -4, 0], eos=(1, 2, 3), **decay) == [1, largest, largest, 0]
