"""Memory of weights: arrays one behind the other, each its own, at the beginning of a cache line."""

import numpy as np

from mindbatch.kernels.arrays import ARENA_CHUNK, CACHE_LINE, Arena


def test_arrays_of_an_arena_are_zeros_and_share_nothing() -> None:
    arena = Arena()
    shapes = [(3, 5), (1,), (0, 4), (7, 100), (ARENA_CHUNK // 4 + 1,), (2, 2)]
    arrays = [arena.zeros(shape, np.dtype(np.float32)) for shape in shapes]
    for number, (array, shape) in enumerate(zip(arrays, shapes, strict=True)):
        assert array.shape == shape
        assert not array.any()
        assert array.ctypes.data % CACHE_LINE == 0 or array.size == 0
        array[...] = number
    for number, array in enumerate(arrays):
        assert (array == number).all()


def test_small_arrays_are_neighbours() -> None:
    """So that many of them lie on one huge page."""
    arena = Arena()
    first, second = (arena.zeros((CACHE_LINE + 1,), np.dtype(np.int8)) for _ in range(2))
    assert second.ctypes.data - first.ctypes.data == 2 * CACHE_LINE
