"""Where a sum crosses a share of the whole, against sorting everything."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mindbatch.decoding.filters import crossing

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
