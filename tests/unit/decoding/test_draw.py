"""Drawing at given uniform numbers, by hand and over more scores than one block holds."""

import numpy as np
import pytest

from mindbatch.decoding.draw import draw

INF = np.inf


def test_takes_the_first_place_whose_cumulative_probability_exceeds_u() -> None:
    scores = np.log(np.array([0.5, 0.25, 0.125, 0.125])).astype(np.float32)
    numbers = np.array([0.0, 0.49, 0.51, 0.74, 0.76, 0.87, 0.88, 1 - 2**-53])
    assert draw(scores, numbers).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("size", [1, 255, 256, 257, 5000])
def test_equal_scores_are_drawn_in_place_order(size: int) -> None:
    numbers = (np.arange(size) + 0.5) / size
    assert draw(np.zeros(size, dtype=np.float32), numbers).tolist() == list(range(size))


@pytest.mark.parametrize("place", [0, 300, 999])
def test_a_filtered_score_is_never_drawn(place: int) -> None:
    scores = np.full(1000, -INF, dtype=np.float32)
    scores[place] = 5.0
    assert draw(scores, np.array([0.0, 0.3, 1 - 2**-53])).tolist() == [place] * 3


def test_equals_the_inverse_of_one_cumulative_sum() -> None:
    generator = np.random.default_rng(0)
    scores = generator.standard_normal(3000).astype(np.float32)
    numbers = generator.random(2000)
    sums = np.cumsum(np.exp(scores - scores.max()), dtype=np.float64)
    expected = np.searchsorted(sums, numbers * sums[-1], side="right")
    np.testing.assert_array_equal(draw(scores, numbers), expected)


def test_no_numbers_draw_nothing() -> None:
    assert draw(np.zeros(3, dtype=np.float32), np.empty(0)).size == 0
