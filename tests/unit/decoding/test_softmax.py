"""Draws at given random numbers, the largest scores of a row, and log-probabilities, each by definition."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from goodness_of_fit import draws, p_value
from mindbatch.decoding.candidates import draw_by_weight, draw_without_replacement
from mindbatch.decoding.row import token_logprobs
from mindbatch.decoding.softmax import (
    exponential,
    kth_largest,
    largest,
    likeliest_and_normalisers,
    likeliest_by_numpy,
    weights_of,
)

SIZES = [1, 2, 31, 4095, 4096, 4097, 5000]


def random_rows(seed: int, rows: int, size: int, *, tied: bool) -> NDArray[np.float32]:
    scores = np.random.default_rng(seed).standard_normal((rows, size)) * 4
    return (np.round(scores) if tied else scores).astype(np.float32)


def by_sorting(scores: NDArray[np.float32], k: int) -> list[list[int]]:
    return [sorted(range(row.size), key=lambda place: (-row[place], place))[:k] for row in scores]


def by_rows(scores: NDArray[np.float32], k: int) -> list[list[int]]:
    return [largest(row, k).tolist() for row in scores]


row_blocks = st.builds(
    random_rows, st.integers(0, 2**32), st.integers(1, 5), st.sampled_from(SIZES), tied=st.booleans()
)


@given(row_blocks, st.sampled_from([0, 1, 2, 8, 32, 33, 700, 6000]))
def test_in_order_with_the_lower_place_first(scores: NDArray[np.float32], k: int) -> None:
    assert by_rows(scores, k) == by_sorting(scores, k)


@given(row_blocks, st.integers(1, 6000))
def test_kth(scores: NDArray[np.float32], k: int) -> None:
    assert kth_largest(scores[0], k) == np.sort(scores[0])[-min(k, scores.shape[1])]


@pytest.mark.parametrize("k", [1, 3, 8])
def test_rows_of_equals_and_of_minus_infinity_beside_others(k: int) -> None:
    scores = random_rows(1, 5, 9000, tied=False)
    scores[1] = 7.0
    scores[2] = -np.inf
    scores[3, :] = -np.inf
    scores[3, [8999, 4]] = [1.0, 2.0]
    assert by_rows(scores, k) == by_sorting(scores, k)


def test_every_place_can_be_the_largest() -> None:
    for place in (0, 1023, 1024, 8191, 8192, 8999):  # the last ones are in no group
        scores = np.zeros((2, 9000), dtype=np.float32)
        scores[1, place] = 1.0
        assert by_rows(scores, 2) == [[0, 1], [place, 1 if place == 0 else 0]]


def test_scores_need_not_be_contiguous() -> None:
    scores = random_rows(2, 6, 9000, tied=False)
    assert by_rows(scores[:, ::2], 4) == by_sorting(scores[:, ::2], 4)


def test_kth_with_filtered_scores() -> None:
    scores = np.full(50_000, -np.inf, dtype=np.float32)
    scores[[5, 40_000]] = [1.0, 2.0]
    assert kth_largest(scores, 2) == 1.0
    assert kth_largest(scores, 3) == -np.inf


Likeliest = Callable[[NDArray[np.float32]], tuple[NDArray[np.int64], NDArray[np.float64]]]


def random_logits(rows: int, size: int) -> NDArray[np.float32]:
    return (np.random.default_rng(size).standard_normal((rows, size)) * 5 + 40).astype(np.float32)


@pytest.mark.parametrize("size", [1, 7, 1000, 50_257])
def test_equal_to_float64(size: int) -> None:
    logits = random_logits(3, size)
    token_ids = np.array([0, size // 2, size - 1])
    exact = log_softmax(logits.astype(np.float64), axis=1)
    for row, (token, found) in enumerate(zip(token_ids, token_logprobs(logits, token_ids, 4), strict=True)):
        assert int(token) in found
        likeliest = np.argsort(-exact[row], kind="stable")[: min(4, size)].tolist()
        assert list(found)[: len(likeliest)] == likeliest
        for place, logprob in found.items():
            assert logprob == pytest.approx(exact[row, place], abs=5e-6)


def test_none_asked_for_gives_the_token_alone() -> None:
    [found] = token_logprobs(np.zeros((1, 4), dtype=np.float32), np.array([2]), 0)
    assert found == pytest.approx({2: -np.log(4)})


WITH_AND_WITHOUT_KERNELS = pytest.mark.parametrize(
    "compute", [likeliest_and_normalisers, likeliest_by_numpy], ids=["kernels", "numpy"]
)


@WITH_AND_WITHOUT_KERNELS
@pytest.mark.parametrize(("rows", "size"), [(40, 1), (40, 13), (300, 1000), (5, 50_257)])
def test_a_row_alone_has_the_same_bits(compute: Likeliest, rows: int, size: int) -> None:
    logits = random_logits(rows, size)
    likeliest, normalisers = compute(logits)
    assert likeliest.tolist() == logits.argmax(axis=1).tolist()
    alone = [compute(logits[[row]])[1][0] for row in range(rows)]
    assert normalisers.tolist() == alone
    assert normalisers == pytest.approx(logsumexp(logits.astype(np.float64), axis=1), abs=4e-6)


@WITH_AND_WITHOUT_KERNELS
def test_the_lowest_of_equals_and_what_is_not_finite(compute: Likeliest) -> None:
    never, nan = -np.inf, np.nan
    rows = [[never, 3, 3], [1, never, -500], [1, np.inf, 0], [0, nan, 1], [never] * 3]
    logits = np.tile(np.array(rows, np.float32), (1, 401))
    likeliest, normalisers = compute(logits)
    assert likeliest[:2].tolist() == [1, 0]
    assert normalisers == pytest.approx([3 + np.log(802), 1 + np.log(401), nan, nan, nan], nan_ok=True)


def test_columns_of_more_scores() -> None:
    logits = random_logits(6, 1000)
    some = likeliest_and_normalisers(logits[:, 100:900])
    assert [part.tolist() for part in some] == [
        part.tolist() for part in likeliest_and_normalisers(logits[:, 100:900].copy())
    ]


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
    sums = np.cumsum(exponential(scores - scores.max()), dtype=np.float64)
    # Blocks are summed in float32: a number within their rounding of a border may fall on either side.
    first, last = (
        np.searchsorted(sums, numbers * sums[-1] * (1 + gap), side="right") for gap in (-1e-7, 1e-7)
    )
    found = draw(scores, numbers)
    assert ((first <= found) & (found <= last)).all()
    assert (first == last).mean() > 0.99


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
