"""Storage of the paged key/value cache and of recurrent states, and the copies that forks need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from mindbatch.kernels.arrays import Array, KernelParameter, aligned_zeros
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.shapes import AttentionShape, CacheGeometry, ConvolutionShape, DeltaShape

LayerCache = AttentionShape | Sequence[ConvolutionShape | DeltaShape]
"""What a layer has a cache for: the keys and values of its heads, or states."""


class BlockCopier(Protocol):
    """Copies blocks of every tensor of a cache, where they are."""

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies blocks by (source, target), see `PagedCache.copy_blocks`."""


class ArrayCopies:
    """Copies blocks of arrays in NumPy's memory, where graphs and programs on a CPU compute too."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = arrays

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        table = np.array(pairs, np.intp).reshape(-1, 2)
        for array in self._arrays if len(pairs) else ():
            array[table[:, 1]] = array[table[:, 0]]


class PagedCache:
    """One key and one value tensor per layer, cut in blocks; the last block takes what padding writes.

    A recurrent layer has tensors of states instead, float32 [num_states, ...].

    layers: the tensors of each layer. nbytes: of all of them, the padding block included.
    """

    def __init__(
        self,
        geometry: CacheGeometry,
        layers: Sequence[tuple[KernelParameter, ...]],
        nbytes: int,
        copier: BlockCopier,
        states: Sequence[Array] = (),
    ) -> None:
        """copier: of blocks. states: the tensors of recurrent layers."""
        self.geometry, self.layers, self.nbytes = geometry, list(layers), nbytes
        self._copier = copier
        self._state_copies = ArrayCopies(states)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies each (source, destination) block in every layer, in the order of the pairs.

        A block may be a source and after that a destination, never the other way round.
        """
        self._copier.copy(pairs)

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies each (source, destination) slot in every recurrent layer, as `copy_blocks` does blocks."""
        self._state_copies.copy(pairs)


def allocate(caches: Sequence[LayerCache], geometry: CacheGeometry, kernels: Kernels) -> PagedCache:
    """A cache of zeros, held as the kernels need it. caches: by layer."""
    blocks, states = list[Array](), list[Array]()
    parameters, layers = list[KernelParameter](), list[tuple[KernelParameter, ...]]()
    for layer, cache in enumerate(caches):
        if isinstance(cache, AttentionShape):
            pair = [
                aligned_zeros(size, kernels.cache_dtype) for size in kernels.cache_shapes(cache, geometry)
            ]
            names = ("keys", "values")
            layers.append(
                tuple(
                    kernels.as_parameter(f"cache.{layer}.{name}", array)
                    for name, array in zip(names, pair, strict=True)
                )
            )
            blocks += pair
            parameters += layers[-1]
        else:
            sizes = ((geometry.num_states, *shape.state) for shape in cache)
            layers.append(tuple(aligned_zeros(size, np.dtype(np.float32)) for size in sizes))
            states += layers[-1]
    copier: BlockCopier = ArrayCopies(blocks)
    if kernels.device_target != "CPU":  # where graphs do not compute in NumPy's memory
        from mindbatch.cache.block_copies import BlockCopies, CopyBlocks

        copier = BlockCopies(CopyBlocks(parameters), padding=geometry.num_blocks)
    nbytes = sum(array.nbytes for array in (*blocks, *states))
    return PagedCache(geometry, layers, nbytes, copier, states)
