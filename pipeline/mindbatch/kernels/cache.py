"""Storage of the paged key/value cache and of recurrent states, and the copies that forks need."""

from collections.abc import Sequence

import numpy as np

from mindbatch.kernels.arrays import Array, Copy, KernelParameter, aligned_zeros, copy_rows
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.shapes import AttentionShape, CacheGeometry, ConvolutionShape, DeltaShape

LayerCache = AttentionShape | Sequence[ConvolutionShape | DeltaShape]
"""What a layer has a cache for: the keys and values of its heads, or states."""


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
        copy: Copy,
        states: Sequence[Array] = (),
    ) -> None:
        """copy: of blocks. states: the tensors of recurrent layers."""
        self.geometry, self.layers, self.nbytes = geometry, list(layers), nbytes
        self._copy, self._states = copy, states

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies each (source, destination) block in every layer, in the order of the pairs.

        A block may be a source and after that a destination, never the other way round.
        """
        self._copy(pairs)

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies each (source, destination) slot in every recurrent layer, as `copy_blocks` does blocks."""
        copy_rows(self._states, pairs)


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
    copy = kernels.block_copies(blocks, parameters, padding=geometry.num_blocks)
    nbytes = sum(array.nbytes for array in (*blocks, *states))
    return PagedCache(geometry, layers, nbytes, copy, states)
