"""The chi-square test of the distributions: the values of its printed tables, and counts that do not fit."""

import pytest

from goodness_of_fit import p_value, survival


@pytest.mark.parametrize(
    ("statistic", "degrees", "tail"),
    [(3.8415, 1, 0.05), (5.9915, 2, 0.05), (7.8147, 3, 0.05), (29.588, 10, 0.001), (43.820, 19, 0.001)],
)
def test_tabulated_values(statistic: float, degrees: int, tail: float) -> None:
    assert survival(statistic, degrees) == pytest.approx(tail, rel=1e-3)


def test_counts_that_fit_and_counts_that_do_not() -> None:
    assert p_value([25, 25, 50], [25, 25, 50]) == 1
    assert p_value([22, 29, 49], [25, 25, 50]) > 0.5
    assert p_value([10, 40, 50], [25, 25, 50]) < 1e-3
