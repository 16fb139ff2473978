"""Each sampling filter against its plain definition, on random and tied scores of every size.

tests/numerics compares them with those of transformers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import plain_filters
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.candidates import Candidates
from mindbatch.decoding.filters import (
    IN_ORDER,
    crossing,
    eta_mask,
    min_p_mask,
    nucleus,
    sampling_candidates,
    top_h_mask,
    top_k_mask,
    top_n_sigma_mask,
    typical_mask,
)
from mindbatch.decoding.params import FILTERS
from mindbatch.decoding.softmax import entropy, weights_of


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


def test_every_filter_that_is_declared_is_applied() -> None:
    assert IN_ORDER.keys() == set(FILTERS)


def assert_same_but_for(mask: NDArray[np.bool_], expected: NDArray[np.bool_], edge: int) -> None:
    """Sums in another order differ in the last bit, so that as many tokens on the very edge may."""
    assert mask.any()
    assert np.count_nonzero(mask != expected) <= edge


@given(score_arrays, st.floats(1e-6, 1.0, exclude_max=True))
def test_nucleus_is_that_of_the_sorted_vocabulary(scores: NDArray[np.float32], top_p: float) -> None:
    mask = nucleus(Candidates(scores), top_p)
    assert_same_but_for(mask, plain_filters.top_p(scores, top_p), 1)
    assert scores[mask].min() >= scores[~mask].max(initial=-np.inf)


@pytest.mark.parametrize("size", [8, 4096])
def test_nucleus_removes_earlier_equals_first(size: int) -> None:
    mask = nucleus(Candidates(np.zeros(size, dtype=np.float32)), 0.5)
    np.testing.assert_array_equal(mask, np.arange(size) >= size // 2)


def test_nucleus_drops_what_is_already_filtered_out() -> None:
    scores = np.array([-np.inf, 1.0, -np.inf, 1.0], dtype=np.float32)
    assert nucleus(Candidates(scores), 0.999999).tolist() == [False, True, False, True]


def test_a_peaked_nucleus_removes_earlier_equals_first() -> None:
    """Four tokens of 0.2 and many that share 0.2: below a tail of 0.5 there are these and one of the four."""
    scores = np.full(5000, np.log(0.2 / 4996), dtype=np.float32)
    scores[[7, 50, 600, 4999]] = np.log(0.2)
    assert np.flatnonzero(nucleus(Candidates(scores), 0.5)).tolist() == [50, 600, 4999]


@given(score_arrays, st.integers(1, 6000))
def test_top_k_keeps_the_k_largest_and_their_equals(scores: NDArray[np.float32], k: int) -> None:
    kth = np.sort(scores)[::-1][min(k, scores.size) - 1]
    np.testing.assert_array_equal(top_k_mask(Candidates(scores), k), scores >= kth)


@given(score_arrays, st.floats(1e-6, 0.999))
def test_typical_is_that_of_the_sorted_vocabulary(scores: NDArray[np.float32], typical_p: float) -> None:
    mask, expected = typical_mask(Candidates(scores), typical_p), plain_filters.typical_p(scores, typical_p)
    differ = scores[mask != expected]
    assert mask.any()
    # On the edge there may be one token above and one below the expected information; equals count once.
    assert np.unique(differ).size <= 2
    assert plain_filters.probabilities(scores)[mask].sum() >= typical_p - 2e-5


@given(score_arrays, st.floats(1e-4, 0.9999))
def test_top_h_is_that_of_the_sorted_vocabulary(scores: NDArray[np.float32], top_h: float) -> None:
    assert_same_but_for(top_h_mask(Candidates(scores), top_h), plain_filters.top_h(scores, top_h), 1)


@given(score_arrays, st.floats(0.01, 6.0), st.integers(0, 4))
def test_top_n_sigma_by_its_definition(scores: NDArray[np.float32], n: float, forbidden: int) -> None:
    scores[1 : 1 + forbidden] = -np.inf
    mask, expected = top_n_sigma_mask(Candidates(scores), n), plain_filters.top_n_sigma(scores, n)
    assert mask[scores.argmax()]
    assert not mask[1 : 1 + forbidden].any()
    assert np.unique(scores[mask != expected]).size <= 1


@given(score_arrays, st.floats(1e-6, 0.5))
def test_eta_by_its_definition(scores: NDArray[np.float32], epsilon: float) -> None:
    mask, expected = eta_mask(Candidates(scores), epsilon), plain_filters.eta(scores, epsilon)
    assert mask.any()
    assert np.unique(scores[mask != expected]).size <= 1


@given(score_arrays)
def test_entropy(scores: NDArray[np.float32]) -> None:
    scores = np.append(scores, np.float32(-np.inf))
    expected = plain_filters.entropy(plain_filters.probabilities(scores))
    assert entropy(scores, weights_of(scores)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    # Logits 4, 0, 2 and -2: the mean is 1 and the deviation the root of 5, 2.236.
    ("n", "least", "kept"),
    [(0.89, 1, [0]), (0.9, 1, [0, 2]), (1.79, 1, [0, 1, 2]), (2.7, 1, [0, 1, 2, 3]), (0.1, 2, [0, 2])],
)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_top_n_sigma_by_hand(n: float, least: int, kept: list[int], temperature: float) -> None:
    logits = np.array([4, 0, 2, -2], dtype=np.float32)
    params = DecodingParams(do_sample=True, temperature=temperature, top_n_sigma=n)
    left = sampling_candidates(logits, params, least).dense(4)
    assert np.flatnonzero(left > -np.inf).tolist() == kept


def test_top_h_keeps_no_more_than_a_hundred() -> None:
    mask = top_h_mask(Candidates(np.zeros(5000, dtype=np.float32)), 0.9999)
    # The lower places, one of the hundred over the limit.
    assert np.flatnonzero(mask).tolist() == list(range(99))


@pytest.mark.parametrize(
    "setting",
    [
        {"top_k": 1},
        {"top_p": 0.01},
        {"min_p": 1.0},
        {"typical_p": 0.01},
        {"epsilon_cutoff": 0.9},
        {"eta_cutoff": 0.9},
    ],
    ids=str,
)
def test_every_filter_keeps_the_least(setting: dict[str, Any]) -> None:
    scores = random_scores(6, 400, 30.0)
    params = DecodingParams(do_sample=True, **setting)
    for least, expected in ((1, 1), (3, 3), (400, 400), (900, 400)):
        left = sampling_candidates(scores, params, least).dense(400)
        assert np.count_nonzero(np.isfinite(left)) == expected


def test_filters_in_a_row_see_what_is_left() -> None:
    """Of 0.4, 0.25 and 0.35 top_k leaves 0.53 and 0.47; before it, 0.35 was below epsilon."""
    scores = np.log(np.array([0.4, 0.25, 0.35])).astype(np.float32)
    params = DecodingParams(do_sample=True, top_k=2, epsilon_cutoff=0.4)
    kept = np.isfinite(sampling_candidates(scores, params).dense(3))
    assert kept.tolist() == [True, False, True]


def test_min_p_of_one_keeps_the_likeliest_and_its_equals() -> None:
    mask = min_p_mask(Candidates(np.array([1, 3, 3, 2], dtype=np.float32)), 1.0)
    assert np.flatnonzero(mask).tolist() == [1, 2]


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

    @pytest.mark.parametrize("kept", [3, 5, 30, 50])
    def test_weights_are_of_the_largest_that_is_left(self, kept: int) -> None:
        candidates = Candidates(self.scores)
        before = candidates.weights
        likeliest = self.scores >= np.sort(self.scores)[-kept]
        for mask in (likeliest, (self.scores < self.scores.max()) & (np.arange(100) < kept)):
            left = candidates.keep(mask)
            np.testing.assert_array_equal(left.weights, weights_of(left.scores))
            assert left.weights.max() == 1.0
        left = candidates.keep(likeliest)
        np.testing.assert_array_equal(left.weights[left.weights > 0], before[likeliest])

    def test_draws_tokens(self) -> None:
        mask = np.arange(100) % 50 == 3
        left = Candidates(np.zeros(100, dtype=np.float32)).keep(mask)
        assert left.draw(np.array([0.0, 0.49, 0.51])).tolist() == [3, 3, 53]

    def test_without_a_filter_nothing_is_copied(self) -> None:
        candidates = sampling_candidates(self.scores, DecodingParams(do_sample=True))
        assert candidates.scores is self.scores


Values = NDArray[np.float32]


def by_sorting(keys: Values, weights: Values, share: float, *, reached: bool) -> list[float]:
    """The key of the crossing; two if the sum comes within rounding of the limit."""
    order = np.argsort(keys, kind="stable")
    sums = np.cumsum(weights[order], dtype=np.float64) / weights.sum(dtype=np.float64)
    places = [
        int(np.searchsorted(sums, share + off, "left" if reached else "right")) for off in (-2e-7, 2e-7)
    ]
    return [float(keys[order[min(place, keys.size - 1)]]) for place in places]


def made_up(seed: int, size: int, spread: float, *, tied: bool, dependent: bool) -> tuple[Values, Values]:
    """Keys, and weights that grow with them or have nothing to do with them."""
    generator = np.random.default_rng(seed)
    scores = (generator.standard_normal(size) * spread).astype(np.float32)
    keys = scores if dependent else generator.standard_normal(size).astype(np.float32)
    return (np.round(keys * 4) if tied else keys), np.exp(scores - scores.max())


cases = st.builds(
    made_up,
    st.integers(0, 2**32),
    st.sampled_from([1, 2, 2048, 2049, 3000, 20_000]),
    st.sampled_from([0.01, 1.0, 5.0]),
    tied=st.booleans(),
    dependent=st.booleans(),
)


@given(cases, st.floats(0.001, 0.999), st.booleans())
def test_is_that_of_the_sorted_keys(case: tuple[Values, Values], share: float, reached: bool) -> None:
    keys, weights = case
    key, num_equal_before = crossing(keys, weights, np.float32(share), reached=reached)
    low, high = by_sorting(keys, weights, share, reached=reached)
    assert low <= key <= high
    assert num_equal_before < np.count_nonzero(keys == key)


@pytest.mark.parametrize("size", [8, 8192])
@pytest.mark.parametrize(("reached", "before"), [(False, 2), (True, 1)])
def test_equal_to_the_limit(size: int, reached: bool, before: int) -> None:
    """All keys are equal and each weighs 1/n: after n/4 of them the sum is a quarter."""
    keys, weights = np.zeros(size, dtype=np.float32), np.ones(size, dtype=np.float32)
    keys[::2] = -0.0
    assert crossing(keys, weights, np.float32(0.25), reached=reached) == (0.0, size // 4 - 2 + before)


def test_none_crosses() -> None:
    keys = np.array([3, 1, 3, 2], dtype=np.float32)
    assert crossing(keys, np.ones(4, dtype=np.float32), np.float32(1.0)) == (3.0, 1)


@pytest.mark.parametrize(
    ("share", "key"), [(0.05, -300.0), (0.3, -2.0), (0.5, -1.0), (0.7, 0.5), (0.95, 7e5)]
)
def test_keys_of_both_signs_are_in_order(share: float, key: float) -> None:
    keys = np.array([0.5, -1.0, 7e5, -300.0, -2.0, -np.inf], dtype=np.float32)
    weights = np.array([1, 1, 1, 1, 1, 0], dtype=np.float32)
    assert crossing(keys, weights, np.float32(share)) == (np.float32(key), 0)
