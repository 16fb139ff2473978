"""Drawing at given uniform numbers, with and without replacement: by hand, and over more than one block."""

import numpy as np
import pytest
from numpy.typing import NDArray

from goodness_of_fit import draws, p_value, survival
from mindbatch.decoding.candidates import draw_by_weight, draw_without_replacement
from mindbatch.decoding.softmax import weights_of

INF = np.inf


def draw(scores: NDArray[np.float32], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
    return draw_by_weight(weights_of(scores), uniforms)


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


class TestWithoutReplacement:
    def test_by_hand(self) -> None:
        """0.5, 0.25, 0.125, 0.125; without the first 0.5, 0.25, 0.25; then without the third."""
        scores = np.log(np.array([0.5, 0.25, 0.125, 0.125])).astype(np.float32)
        assert draw_without_replacement(scores, np.array([0.4, 0.6, 0.5])).tolist() == [0, 2, 1]
        assert draw_without_replacement(scores, np.array([0.4, 0.4, 0.51])).tolist() == [0, 1, 3]

    def test_first_is_that_of_a_draw(self) -> None:
        scores = np.random.default_rng(3).standard_normal(5000).astype(np.float32)
        for number in np.random.default_rng(4).random(50):
            drawn = draw_without_replacement(scores, np.array([number, 0.5]))
            assert drawn[:1].tolist() == draw(scores, np.array([number])).tolist()
            assert drawn[0] != drawn[1]

    @pytest.mark.parametrize("size", [6, 700])
    def test_distribution_of_pairs(self, size: int) -> None:
        """P(i, then j) = p_i p_j / (1 - p_i), counted over draws of two in a few likely places."""
        generator = np.random.default_rng(size)
        scores = np.full(size, -INF, dtype=np.float32)
        places = np.sort(generator.permutation(size)[:5])
        scores[places] = generator.standard_normal(5)
        shares = np.exp(scores[places].astype(np.float64))
        shares /= shares.sum()
        expected = shares[:, np.newaxis] * shares / (1 - shares[:, np.newaxis])
        np.fill_diagonal(expected, 0)
        count = draws(4000, thorough=40_000)
        seen = np.zeros((5, 5))
        for numbers in generator.random((count, 2)):
            seen[tuple(np.searchsorted(places, draw_without_replacement(scores, numbers)))] += 1
        assert np.trace(seen) == 0
        off = ~np.eye(5, dtype=bool)
        assert p_value(seen[off], count * expected[off]) > 1e-3

    def test_unlikely_places_follow_when_the_likely_ones_are_gone(self) -> None:
        """Weights beside a score of 500 are 0 in float32; those left afterwards are 0.5, 0.25 and 0.25."""
        scores = np.array([-300.0, 500.0, -300 + np.log(2), -INF, -300.0], dtype=np.float32)
        for number, place in ((0.2, 0), (0.3, 2), (0.7, 2), (0.8, 4)):
            assert draw_without_replacement(scores, np.array([0.9, number])).tolist() == [1, place]

    def test_what_is_left_is_drawn_exactly(self) -> None:
        """1/3 and 2/3, of weights that beside the first keep two digits in float32."""
        scores = np.array([0.0, -100.0, -100 + np.log(2)], dtype=np.float32)
        for number, place in ((0.3332, 1), (0.3335, 2)):
            assert draw_without_replacement(scores, np.array([0.9, number])).tolist() == [0, place]

    def test_ends_when_nothing_is_left(self) -> None:
        scores = np.array([-INF, 1.0, -INF, 2.0], dtype=np.float32)
        assert sorted(draw_without_replacement(scores, np.full(4, 0.5)).tolist()) == [1, 3]
        assert draw_without_replacement(np.full(3, -INF, dtype=np.float32), np.full(2, 0.5)).size == 0

    def test_the_scores_are_not_changed(self) -> None:
        scores = np.arange(4, dtype=np.float32)
        draw_without_replacement(scores, np.full(4, 0.5))
        assert scores.tolist() == [0, 1, 2, 3]


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
