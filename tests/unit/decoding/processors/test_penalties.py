"""Penalties on tokens of the prompt and the output, by hand."""

from collections.abc import Callable

import pytest

Adjusted = Callable[..., list[float]]
SCORES = [2.0, -2.0, 0.0, 4.0]


def test_repetition_divides_positive_and_multiplies_negative_scores_once(adjusted: Adjusted) -> None:
    assert adjusted([0, 1, 0], [0, 1], SCORES, repetition_penalty=2.0) == [1, -4, 0, 4]


def test_repetition_counts_prompt_and_output(adjusted: Adjusted) -> None:
    assert adjusted([0, 0], [3], SCORES, repetition_penalty=2.0) == [1, -2, 0, 2]


def test_encoder_repetition_is_the_inverse_on_the_prompt_alone(adjusted: Adjusted) -> None:
    assert adjusted([0, 1, 0], [3], SCORES, encoder_repetition_penalty=2.0) == [4, -1, 0, 4]
    assert adjusted([0, 1, 0], [3], SCORES, encoder_repetition_penalty=0.5) == [1, -4, 0, 4]


@pytest.mark.parametrize(
    ("frequency", "presence", "expected"),
    [(0.5, 0.0, [2, -2.5, 0, 2.5]), (0.0, 1.5, [2, -3.5, 0, 2.5]), (0.5, -2.0, [2, -0.5, 0, 4.5])],
)
def test_frequency_and_presence(
    frequency: float, presence: float, expected: list[float], adjusted: Adjusted
) -> None:
    """Output: one token 1 and three tokens 3; the prompt's 0 and 2 do not count."""
    penalties = {"frequency_penalty": frequency, "presence_penalty": presence}
    assert adjusted([0, 2, 3], [3, 1, 3, 3], SCORES, **penalties) == expected


def test_without_output_nothing_is_frequent_or_present(adjusted: Adjusted) -> None:
    assert adjusted([0, 3], [], SCORES, frequency_penalty=1.0, presence_penalty=1.0) == SCORES
