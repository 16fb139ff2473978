"""Metrics of likelihoods."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from mindbatch.evaluation import metric_of
from mindbatch.evaluation.metric import ChoiceScores, TextLikelihood


def value(name: str, rows: Sequence[Any]) -> float:
    """The value of rows of one sample each."""
    return metric_of(name).of([(row,) for row in rows])


def test_the_likeliest_choice_and_the_likeliest_by_bytes() -> None:
    short_wins = ChoiceScores((-2.0, -3.0), (1, 10), correct=1)
    assert (value("acc", [short_wins]), value("acc_norm", [short_wins])) == (0.0, 1.0)
    equal = ChoiceScores((-1.0, -1.0), (1, 1), correct=1)
    assert value("acc", [equal, short_wins, ChoiceScores((-1.0,), (0,), 0)]) == pytest.approx(1 / 3)


def test_perplexity_counts_every_unit_of_all_texts_the_same() -> None:
    texts = [TextLikelihood(-2.0, 2, 1, 8), TextLikelihood(-10.0, 4, 3, 16)]
    assert value("perplexity", texts) == pytest.approx(math.exp(12 / 6))
    assert value("word_perplexity", texts) == pytest.approx(math.exp(12 / 4))
    assert value("byte_perplexity", texts) == pytest.approx(math.exp(12 / 24))
    assert value("bits_per_byte", texts) == pytest.approx(12 / 24 / math.log(2))
    assert math.isinf(value("perplexity", [TextLikelihood(-1e6, 1, 1, 1)]))
    assert math.isnan(metric_of("perplexity").of([]))
