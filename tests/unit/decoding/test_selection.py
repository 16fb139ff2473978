"""The largest scores of a row, against sorting everything."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mindbatch.decoding.softmax import kth_largest, largest

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
