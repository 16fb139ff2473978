"""Counted lengths: their statistics and their histogram."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.run.plan import Lengths


def lengths_of(values: Iterable[int]) -> Lengths:
    lengths = Lengths()
    for value in values:
        lengths.add(value)
    return lengths


def test_statistics() -> None:
    lengths = lengths_of([4, 1, 9, 2, 2])
    assert (lengths.count, lengths.total, lengths.mean, lengths.longest) == (5, 18, 3.6, 9)


def test_a_length_may_count_several_times() -> None:
    lengths = Lengths()
    lengths.add(5, 3)
    assert (lengths.count, lengths.total) == (3, 15)


def test_nothing_counted_is_zero() -> None:
    lengths = Lengths()
    assert (lengths.count, lengths.total, lengths.mean, lengths.longest) == (0, 0, 0, 0)
    assert lengths.quantile(0.5) == 0
    assert lengths.histogram() == []


@given(st.lists(st.integers(1, 300), min_size=1), st.sampled_from([0.25, 0.5, 0.95, 1.0]))
def test_a_quantile_is_the_smallest_length_that_covers_its_share(values: list[int], share: float) -> None:
    found = lengths_of(values).quantile(share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1], [(1, 1, 1)]),
        ([7, 8, 4], [(4, 7, 2), (8, 15, 1)]),
        ([2, 17], [(2, 3, 1), (4, 7, 0), (8, 15, 0), (16, 31, 1)]),
    ],
)
def test_the_histogram_goes_by_powers_of_two(values: list[int], expected: list[tuple[int, int, int]]) -> None:
    assert lengths_of(values).histogram() == expected


@given(st.lists(st.integers(1, 5000), min_size=1))
def test_the_histogram_has_every_row_once(values: list[int]) -> None:
    parts = lengths_of(values).histogram()
    for part in parts:
        assert part.rows == sum(part.first <= value <= part.last for value in values)
    assert sum(part.rows for part in parts) == len(values)
    assert parts[0].rows
    assert parts[-1].rows
