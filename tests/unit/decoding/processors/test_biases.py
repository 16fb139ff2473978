"""logit_bias and sequence_bias, by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.processors import adjust
from mindbatch.decoding.row import Row

Adjusted = Callable[..., list[float]]


def test_logit_bias_is_added_at_every_position(adjusted: Adjusted) -> None:
    bias = {"1": 2.5, 3: -100}
    assert adjusted([0], [], [1, 1, 1, 1], logit_bias=bias) == [1, 3.5, 1, -99]
    assert adjusted([0], [1, 1], [1, 1, 1, 1], logit_bias=bias) == [1, 3.5, 1, -99]


@pytest.mark.parametrize(
    ("prompt", "output", "expected"),
    [
        ([0], [], [0, 10, 0, 0]),  # only the single token
        ([9, 5], [], [0, 10, 20, 0]),  # 5, then 2
        ([5], [9, 5], [0, 10, 20, 0]),
        ([9, 4, 5], [], [0, 10, 20, 40]),  # 5 2 and 4 5 3
        ([9, 4], [5], [0, 10, 20, 40]),
        ([9, 6], [], [0, 90, 0, 0]),  # 6 1 adds to what 1 gets anyway
        ([5, 9], [], [0, 10, 0, 0]),  # 5 is not the latest token
        ([4, 9, 5], [], [0, 10, 20, 0]),
    ],
)
def test_sequence_bias(
    prompt: list[int], output: list[int], expected: list[float], adjusted: Adjusted
) -> None:
    pairs = [[[1], 10.0], [[5, 2], 20.0], [[4, 5, 3], 40.0], [[6, 1], 80.0]]
    assert adjusted(prompt, output, [0, 0, 0, 0], sequence_bias=pairs) == expected


def test_a_sequence_as_long_as_the_context_is_looked_for_and_no_longer_one(adjusted: Adjusted) -> None:
    """transformers' rule: a sequence of 2 needs a context of 2, though 1 would do."""
    bias = [[[5, 2], 1.0]]
    assert adjusted([5], [], [0, 0, 0], sequence_bias=bias) == [0, 0, 0]
    assert adjusted([5, 5], [], [0, 0, 0], sequence_bias=bias) == [0, 0, 1]


def test_biases_of_one_token_are_summed_before_they_are_added(adjusted: Adjusted) -> None:
    """2**24 + 1 is no float32: added one by one, the ones would be lost."""
    pairs = [[[1], 1.0], [[3, 1], 1.0]]
    assert adjusted([0, 3], [], [0, 2.0**24], sequence_bias=pairs) == [0, 2.0**24 + 2]


@pytest.mark.parametrize("params", [{"sequence_bias": [[[1, 2], 1.0]]}])
def test_without_a_match_nothing_is_copied(params: dict[str, Any]) -> None:
    scores = np.zeros(4, dtype=np.float32)
    assert adjust(scores, Row(DecodingParams(**params), [3, 3, 3], [], (), row_hash=1)) is scores
