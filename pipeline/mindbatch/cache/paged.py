"""Storage of the paged key/value cache, and the copying of blocks that forks need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mindbatch.kernels.arrays import Array, aligned_zeros
from mindbatch.kernels.interface import AttentionShape, CacheGeometry, Kernels

if TYPE_CHECKING:  # MindSpore
    from mindspore import Parameter

    from mindbatch.cache.block_copies import BlockCopies


class PagedCache:
    """One key and one value tensor per layer, cut in blocks; the last block takes what padding writes."""

    def __init__(self, shapes: Sequence[AttentionShape], geometry: CacheGeometry, kernels: Kernels) -> None:
        self.geometry = geometry
        self._itemsize = kernels.dtype.itemsize
        self._arrays: list[Array] = []
        self.keys: list[Parameter | Array] = []
        self.values: list[Parameter | Array] = []
        for layer, shape in enumerate(shapes):
            sizes = kernels.cache_shapes(shape, geometry)
            keys, values = (aligned_zeros(size, kernels.dtype) for size in sizes)
            self._arrays += [keys, values]
            self.keys.append(kernels.held(f"cache.{layer}.keys", keys))
            self.values.append(kernels.held(f"cache.{layer}.values", values))
        self._blocks_on_device: BlockCopies | None = None
        if kernels.device_target != "CPU":  # where graphs do not compute in NumPy's memory
            from mindbatch.cache.block_copies import BlockCopies, CopyBlocks

            tensors = self.keys + self.values
            self._blocks_on_device = BlockCopies(CopyBlocks(tensors), padding=geometry.num_blocks)

    @property
    def layers(self) -> list[tuple[Parameter | Array, Parameter | Array]]:
        """The key and value tensors of each layer."""
        return list(zip(self.keys, self.values, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks, the padding block included."""
        return sum(math.prod(each.shape) for each in self.keys + self.values) * self._itemsize

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies each (source, destination) block in every layer; all are read before any is written."""
        if self._blocks_on_device is not None:
            self._blocks_on_device.copy(pairs)
            return
        table = np.array(pairs, np.intp).reshape(-1, 2)
        for array in self._arrays if len(pairs) else ():
            array[table[:, 1]] = array[table[:, 0]]
