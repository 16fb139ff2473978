"""Where a sum crosses a limit, against sorting everything; and that not everything is sorted for it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import mindbatch.decoding.crossing as module
from mindbatch.decoding.crossing import Crossing, Limit, crossing, crossing_after

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
    found = crossing(keys, weights, Limit(np.float32(share), float(weights.sum()), reached))
    low, high = by_sorting(keys, weights, share, reached=reached)
    assert low <= found.key <= high
    assert found.num_equal_before < np.count_nonzero(keys == found.key)


@pytest.mark.parametrize("size", [8, 8192])
@pytest.mark.parametrize(("reached", "before"), [(False, 2), (True, 1)])
def test_equal_to_the_limit(size: int, reached: bool, before: int) -> None:
    """All keys are equal and each weighs 1/n: after n/4 of them the sum is a quarter."""
    keys, weights = np.zeros(size, dtype=np.float32), np.ones(size, dtype=np.float32)
    found = crossing(keys, weights, Limit(np.float32(0.25), float(size), reached))
    assert found == Crossing(np.float32(0), size // 4 - 2 + before)


def test_none_crosses() -> None:
    keys = np.array([3, 1, 3, 2], dtype=np.float32)
    assert crossing(keys, np.ones(4, dtype=np.float32), Limit(np.float32(1.0), 4.0)) == Crossing(
        np.float32(3), 1
    )


def test_after_a_tail() -> None:
    keys, weights, limit = (
        np.array([2, 1], np.float32),
        np.array([3, 2], np.float32),
        Limit(np.float32(0.5), 10),
    )
    assert crossing_after(2.0, keys, weights, limit) == Crossing(np.float32(2), 0)
    assert crossing_after(4.0, keys, weights, limit) == Crossing(np.float32(1), 0)
    assert crossing_after(0.0, keys, weights, limit) is None  # it is after them
    assert crossing_after(5.1, keys, weights, limit) is None  # it is before them


@pytest.mark.parametrize("dependent", [True, False])
@pytest.mark.parametrize("spread", [0.3, 1.0, 4.0])
def test_few_keys_are_sorted(spread: float, dependent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    original: Callable[..., Any] = crossing_after

    def counting(tail: float, keys: Values, *others: Any) -> Crossing | None:
        sizes.append(keys.size)
        return original(tail, keys, *others)  # type: ignore[no-any-return]

    monkeypatch.setattr(module, "crossing_after", counting)
    for seed in range(20):
        keys, weights = made_up(seed, 50_000, spread, tied=False, dependent=dependent)
        for share in (0.1, 0.5, 0.8):
            crossing(keys, weights, Limit(np.float32(share), float(weights.sum())))
    assert np.mean(sizes) < 5000
