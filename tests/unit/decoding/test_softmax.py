"""The largest scores of a row against sorting, and log-probabilities against SciPy in float64."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from mindbatch.decoding.row import token_logprobs
from mindbatch.decoding.softmax import kth_largest, largest, likeliest_and_normalisers, likeliest_by_numpy

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
