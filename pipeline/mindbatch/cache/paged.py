"""Storage of the paged key/value cache, and the copying of blocks that forks need."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindbatch.kernels.arrays import Array, aligned_zeros, shared_parameter
from mindbatch.kernels.interface import AttentionShape, CacheGeometry, Kernels

COPIES_PER_CALL = 16


class PagedCache:
    """One key and one value tensor per layer, cut in blocks; the last block takes what padding writes."""

    def __init__(self, shapes: Sequence[AttentionShape], geometry: CacheGeometry, kernels: Kernels) -> None:
        self.geometry = geometry
        self._itemsize = kernels.dtype.itemsize
        self._arrays: list[Array] = []
        self.keys: list[Parameter] = []
        self.values: list[Parameter] = []
        for layer, shape in enumerate(shapes):
            sizes = kernels.cache_shapes(shape, geometry)
            keys, values = (aligned_zeros(size, kernels.dtype) for size in sizes)
            self._arrays += [keys, values]
            self.keys.append(shared_parameter(f"cache.{layer}.keys", keys))
            self.values.append(shared_parameter(f"cache.{layer}.values", values))
        is_shared = kernels.device_target == "CPU"
        self._copy = None if is_shared else CopyBlocks(self.keys + self.values)

    @property
    def layers(self) -> list[tuple[Parameter, Parameter]]:
        """The key and value tensors of each layer."""
        return list(zip(self.keys, self.values, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks, the padding block included."""
        return sum(math.prod(each.shape) for each in self.keys + self.values) * self._itemsize

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies each (source, destination) block in every layer; all are read before any is written."""
        if self._copy is None:
            table = np.array(pairs, np.intp).reshape(-1, 2)
            for array in self._arrays if len(pairs) else ():
                array[table[:, 1]] = array[table[:, 0]]
            return
        padding = self.geometry.num_blocks
        for first in range(0, len(pairs), COPIES_PER_CALL):
            some = list(pairs[first : first + COPIES_PER_CALL])
            some += [(padding, padding)] * (COPIES_PER_CALL - len(some))
            table = np.asarray(some, np.int32)
            self._copy(Tensor(table[:, 0].copy()), Tensor(table[:, 1].copy()))


class CopyBlocks(nn.Cell):
    """tensor[destinations] = tensor[sources] for every cache tensor; sources, destinations: [n] int32."""

    def __init__(self, tensors: Sequence[Parameter]) -> None:
        super().__init__(auto_prefix=False)
        self.tensors = list(tensors)
        self.update = ops.ScatterUpdate()

    def construct(self, sources: Tensor, destinations: Tensor) -> Tensor:
        for tensor in self.tensors:
            self.update(tensor, destinations, ops.gather(tensor, sources, 0))
        return sources
