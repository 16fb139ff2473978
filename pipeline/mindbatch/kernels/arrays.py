"""Memory of weights and caches."""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float32]
CACHE_LINE = 64
HUGE_PAGE = 2 << 20


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Zeros that begin at a cache line; large arrays on huge pages where the system has them.

    No vector load of a kernel straddles two lines, and reading weights in a row costs few address
    translations. The pages of a large array come from the system when they are first written.
    """
    size = math.prod(shape) * dtype.itemsize
    if size >= HUGE_PAGE:
        mapped = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            mapped.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(mapped, dtype).reshape(shape)
    memory = np.zeros(size + CACHE_LINE, np.uint8)
    first = -memory.ctypes.data % CACHE_LINE
    return memory[first : first + size].view(dtype).reshape(shape)
