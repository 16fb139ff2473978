"""Memory of weights and caches."""

import math
import mmap
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
FloatArray = npt.NDArray[np.float32]
KernelParameter = Any
"""A weight or a cache as kernels keep it: an array, or a parameter or tensor of MindSpore over one."""
PackedWeight = Annotated[Array, "packed weight"]
"""An operation's input whose kind, a `WeightKind`, the C++ library takes as a setting."""
CacheArray = Annotated[Array, "cache"]
"""An operation's input for which the C++ library has a function for each type of caches."""
CopyRows = Callable[[Sequence[tuple[int, int]]], None]
"""Copies rows of several arrays by (source, target)."""


class PackedArray(np.ndarray[Any, Any]):
    """A packed weight that says how it is kept. kind: a `WeightKind`."""

    kind: str

    @classmethod
    def over(cls, array: Array, kind: str) -> "PackedArray":
        """The array's own memory as a weight of this kind."""
        packed = array.view(cls)
        packed.kind = kind
        return packed

    def __array_finalize__(self, source: Any) -> None:
        self.kind = getattr(source, "kind", "")


CACHE_LINE = 64
HUGE_PAGE = 2 << 20
ARENA_CHUNK = 32 << 20
HUGE_PAGE_SIZE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Zeros that begin at a cache line; large arrays on huge pages where the system has them.

    No vector load of a kernel straddles two lines, and reading weights in a row costs few address
    translations. The pages of a large array come from the system when they are first written.
    """
    size = math.prod(shape) * dtype.itemsize
    if size >= HUGE_PAGE:
        return np.frombuffer(_huge_pages(size), dtype).reshape(shape)
    memory = np.zeros(size + CACHE_LINE, np.uint8)
    first = -memory.ctypes.data % CACHE_LINE
    return memory[first : first + size].view(dtype).reshape(shape)


def _huge_pages(size: int) -> mmap.mmap:
    mapped = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE") and _are_small(HUGE_PAGE_SIZE):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


@cache
def _are_small(size_file: Path) -> bool:
    """Says whether a huge page is no larger than what is taken at once.

    Where pages have 64 KiB, as on some aarch64 systems, a huge one has 512 MiB: too much for one number.
    """
    try:
        return int(size_file.read_text()) <= ARENA_CHUNK
    except (OSError, ValueError):  # older systems do not say; they have the small ones
        return True


class Arena:
    """Zeros for arrays that are kept together, one behind the other: all on huge pages, small ones too.

    A page comes from the system when it is first written, and goes back with the last array of its chunk.
    """

    def __init__(self) -> None:
        self._free: Array = np.empty(0, np.uint8)

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array that begins at a cache line."""
        size = math.prod(shape) * dtype.itemsize
        whole = -(-size // CACHE_LINE) * CACHE_LINE
        if whole > len(self._free):
            chunk = np.frombuffer(_huge_pages(max(whole, ARENA_CHUNK) + HUGE_PAGE), np.uint8)
            self._free = chunk[-chunk.ctypes.data % HUGE_PAGE :]
        own, self._free = self._free[:size], self._free[whole:]
        return own.view(dtype).reshape(shape)


def copy_rows(arrays: Sequence[Array], pairs: Sequence[tuple[int, int]]) -> None:
    """Copies rows of arrays in NumPy's memory, where graphs and programs on a CPU compute too."""
    if not pairs:
        return
    table = np.array(pairs, np.intp)
    for array in arrays:
        array[table[:, 1]] = array[table[:, 0]]
