"""Storage of the paged key/value cache, and the copying of blocks that forks need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from mindbatch.kernels.arrays import Array, KernelParameter, aligned_zeros
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.shapes import AttentionShape, CacheGeometry


class BlockCopier(Protocol):
    """Copies blocks of every tensor of a cache, where they are."""

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies blocks by (source, target), see `PagedCache.copy_blocks`."""


class PagedCache:
    """One key and one value tensor per layer, cut in blocks; the last block takes what padding writes."""

    def __init__(
        self,
        geometry: CacheGeometry,
        keys: Sequence[KernelParameter],
        values: Sequence[KernelParameter],
        itemsize: int,
        copier: BlockCopier,
    ) -> None:
        """keys, values: by layer, their first dimension the blocks. itemsize: bytes of an element."""
        self.geometry = geometry
        self.keys, self.values = list(keys), list(values)
        self._itemsize = itemsize
        self._copier = copier

    @property
    def layers(self) -> list[tuple[KernelParameter, KernelParameter]]:
        """The key and value tensors of each layer."""
        return list(zip(self.keys, self.values, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks, the padding block included."""
        return sum(math.prod(array.shape) for array in self.keys + self.values) * self._itemsize

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies each (source, destination) block in every layer, in the order of the pairs.

        A block may be a source and after that a destination, never the other way round.
        """
        self._copier.copy(pairs)


class ArrayCopies:
    """Copies blocks of arrays in NumPy's memory, where graphs and programs on a CPU compute too."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = arrays

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        table = np.array(pairs, np.intp).reshape(-1, 2)
        for array in self._arrays if len(pairs) else ():
            array[table[:, 1]] = array[table[:, 0]]


def allocate(shapes: Sequence[AttentionShape], geometry: CacheGeometry, kernels: Kernels) -> PagedCache:
    """A cache of zeros, held as the kernels need it. shapes: by layer."""
    arrays = [
        [aligned_zeros(size, kernels.cache_dtype) for size in kernels.cache_shapes(shape, geometry)]
        for shape in shapes
    ]
    keys = [kernels.as_parameter(f"cache.{layer}.keys", pair[0]) for layer, pair in enumerate(arrays)]
    values = [kernels.as_parameter(f"cache.{layer}.values", pair[1]) for layer, pair in enumerate(arrays)]
    copier: BlockCopier = ArrayCopies([array for pair in arrays for array in pair])
    if kernels.device_target != "CPU":  # where graphs do not compute in NumPy's memory
        from mindbatch.cache.block_copies import BlockCopies, CopyBlocks

        copier = BlockCopies(CopyBlocks(keys + values), padding=geometry.num_blocks)
    return PagedCache(geometry, keys, values, kernels.cache_dtype.itemsize, copier)
