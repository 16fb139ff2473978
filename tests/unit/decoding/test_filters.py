"""Top-k, top-p and min-p against plain definitions, on random and tied scores of every size."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mindbatch.decoding import DecodingParams
from mindbatch.decoding.filters import Candidates, min_p_mask, sampling_candidates, top_k_mask
from mindbatch.decoding.nucleus import nucleus
from mindbatch.decoding.selection import kth_largest, largest
from mindbatch.decoding.softmax import softmax


def random_scores(seed: int, size: int, scale: float, *, tied: bool = False) -> NDArray[np.float32]:
    scores = np.random.default_rng(seed).standard_normal(size) * scale
    return (np.round(scores) if tied else scores).astype(np.float32)


score_arrays = st.builds(
    random_scores,
    st.integers(0, 2**32),
    st.sampled_from([1, 2, 3, 31, 1024, 1025, 5000]),
    st.sampled_from([0.01, 1.0, 4.0, 30.0]),
    tied=st.booleans(),
)


def sorted_nucleus(scores: NDArray[np.float32], top_p: float) -> NDArray[np.bool_]:
    """Top-p by its definition, sorting everything."""
    order = np.argsort(scores, kind="stable")
    sums = np.cumsum(softmax(scores)[order], dtype=np.float64).astype(np.float32)
    mask = np.empty(scores.size, dtype=np.bool_)
    mask[order] = sums > np.float32(1 - top_p)
    mask[order[-1]] = True
    return mask


@given(score_arrays, st.floats(1e-6, 1.0, exclude_max=True))
@settings(max_examples=300, deadline=None)
def test_nucleus_is_that_of_the_sorted_vocabulary(scores: NDArray[np.float32], top_p: float) -> None:
    mask, expected = nucleus(scores, top_p), sorted_nucleus(scores, top_p)
    # Sums in another order may differ in the last bit, so that one token on the very edge may.
    assert np.count_nonzero(mask != expected) <= 1
    assert scores[mask].min() >= scores[~mask].max(initial=-np.inf)


@pytest.mark.parametrize("size", [8, 4096])
def test_nucleus_removes_earlier_equals_first(size: int) -> None:
    mask = nucleus(np.zeros(size, dtype=np.float32), 0.5)
    np.testing.assert_array_equal(mask, np.arange(size) >= size // 2)


def test_nucleus_drops_what_is_already_filtered_out() -> None:
    scores = np.array([-np.inf, 1.0, -np.inf, 1.0], dtype=np.float32)
    assert nucleus(scores, 0.999999).tolist() == [False, True, False, True]


@pytest.mark.parametrize("size", [8, 4096])
def test_nucleus_always_keeps_one(size: int) -> None:
    mask = nucleus(random_scores(1, size, 1.0), 1e-9)
    assert np.flatnonzero(mask).tolist() == [random_scores(1, size, 1.0).argmax()]


@given(score_arrays, st.integers(1, 6000))
@settings(max_examples=200, deadline=None)
def test_top_k_keeps_the_k_largest_and_their_equals(scores: NDArray[np.float32], k: int) -> None:
    kth = np.sort(scores)[::-1][min(k, scores.size) - 1]
    np.testing.assert_array_equal(top_k_mask(scores, k), scores >= kth)


@given(score_arrays, st.integers(0, 6000))
@settings(max_examples=200, deadline=None)
def test_largest_are_in_order_with_the_lower_place_first(scores: NDArray[np.float32], k: int) -> None:
    expected = sorted(range(scores.size), key=lambda place: (-scores[place], place))[:k]
    assert largest(scores, k).tolist() == expected


def test_kth_largest_with_filtered_scores() -> None:
    scores = np.full(50_000, -np.inf, dtype=np.float32)
    scores[[5, 40_000]] = [1.0, 2.0]
    assert kth_largest(scores, 2) == 1.0
    assert kth_largest(scores, 3) == -np.inf


def test_min_p_of_one_keeps_the_likeliest_and_its_equals() -> None:
    assert min_p_mask(np.array([1, 3, 3, 2], dtype=np.float32), 1.0).tolist() == [False, True, True, False]


class TestCandidates:
    scores = random_scores(4, 100, 1.0)

    @pytest.mark.parametrize("kept", [1, 5, 50, 99, 100])
    def test_keeping_few_or_many_is_the_same(self, kept: int) -> None:
        mask = np.zeros(100, dtype=np.bool_)
        mask[np.random.default_rng(0).permutation(100)[:kept]] = True
        expected = np.where(mask, self.scores, -np.inf)
        np.testing.assert_array_equal(Candidates(self.scores).keep(mask).dense(100), expected)

    def test_keeping_twice_names_the_right_tokens(self) -> None:
        once = Candidates(random_scores(4, 1000, 1.0)).keep(np.arange(1000) % 50 == 3)
        twice = once.keep(np.arange(20) == 7)
        assert twice.tokens(np.array([0])).tolist() == [353]
        assert np.flatnonzero(np.isfinite(twice.dense(1000))).tolist() == [353]

    def test_without_a_filter_nothing_is_copied(self) -> None:
        candidates = sampling_candidates(self.scores, DecodingParams(do_sample=True))
        assert candidates.scores is self.scores
