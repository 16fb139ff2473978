"""Numbers of the table of an evaluation."""

import pytest

from mindbatch.evaluation import metric_of


@pytest.mark.parametrize(
    ("metric", "value", "sign", "text"),
    [
        ("exact_match", -0.0004, "", "0.0%"),
        ("exact_match", -0.0004, "+", "+0.0%"),
        ("exact_match", -0.0006, "+", "-0.1%"),
        ("perplexity", -0.004, "+", "+0.00"),
        ("perplexity", -1.994, "", "-1.99"),
    ],
)
def test_what_is_shown_as_zero_has_no_minus(metric: str, value: float, sign: str, text: str) -> None:
    assert metric_of(metric).text(value, sign) == text
