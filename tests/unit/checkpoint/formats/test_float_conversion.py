"""The slices cover an array once, in order, each within the limit."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.checkpoint.formats.float_conversion import bounded_slices


@given(st.lists(st.integers(0, 6), max_size=4), st.integers(1, 40))
def test_slices_cover_everything_once_within_the_limit(sizes: list[int], limit: int) -> None:
    array = np.arange(math.prod(sizes)).reshape(sizes)
    parts = [array[index] for index in bounded_slices(tuple(sizes), limit)]
    assert all(part.size <= limit and part.base is not None for part in parts)
    assert np.concatenate([part.ravel() for part in parts]).tolist() == array.ravel().tolist()


def test_slices_are_as_few_as_rows_allow() -> None:
    assert list(bounded_slices((5, 4), 8)) == [(slice(0, 2),), (slice(2, 4),), (slice(4, 6),)]
    assert list(bounded_slices((2, 3), 6)) == [(...,)]
    assert list(bounded_slices((2, 4), 2))[:2] == [(0, slice(0, 2)), (0, slice(2, 4))]
