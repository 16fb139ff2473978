"""The C++ CPU kernels."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mindbatch.kernels.adapters import AdaptedShape, AdapterStore, Ranks
from mindbatch.kernels.arrays import Array, FloatArray
from mindbatch.kernels.interface import ProgramKernels
from mindbatch.kernels.meetings import ProcessGroups
from mindbatch.kernels.memory import BFLOAT16, FLOAT32, INT8, FloatType, NumberType, padded_head
from mindbatch.kernels.native_adapters import NativeAdapters
from mindbatch.kernels.native_functions import NativeFunctions
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.kernels.native_weights import PANEL, Int8Weights, native_weights
from mindbatch.kernels.program.buffers import OutputMemory
from mindbatch.kernels.program.program import NativeProgram
from mindbatch.kernels.recording import Recording
from mindbatch.kernels.shapes import AttentionShape, CacheGeometry
from mindbatch.parallel.topology import Stage, TensorSlice, Topology


class NativeKernels(ProgramKernels):
    """Kernels of csrc/; rows of a batch never influence one another's arithmetic."""

    name = "native"

    def __init__(
        self, library: NativeLibrary, weights: NumberType = FLOAT32, cache: FloatType = FLOAT32
    ) -> None:
        """weights, cache: what matrices, and keys and values, are kept in; all else is float32."""
        self.library = library
        self._cache_type = cache
        self.meetings = ProcessGroups(library)
        self._weights = native_weights(weights, library)
        of_cache = "" if cache == FLOAT32 else f"_{cache.name}"
        is_rounded = weights in (BFLOAT16, INT8)
        self.functions = NativeFunctions(self.meetings, self._weights.suffix, of_cache, is_rounded=is_rounded)

    def meet(self, topology: Topology, rank: int, secret: bytes | None) -> None:
        """Joins the other ranks in memory that they share, or through MPI."""
        self.meetings.enter(topology, rank, secret)

    def can_run(self, shard: TensorSlice, stage: Stage) -> bool:
        return self.meetings.suffice(shard, stage)

    def program(self, recording: Recording, outputs: Sequence[OutputMemory] | None = None) -> NativeProgram:
        return NativeProgram(recording, self.library, outputs, self.meetings.functions)

    def lowered(self, recording: Recording) -> Recording:
        return self.functions.lowered(recording)

    @property
    def cache_type(self) -> FloatType:
        return self._cache_type

    @property
    def cache_dtype(self) -> np.dtype[Any]:
        """NumPy's form of `cache_type`: uint16 for bfloat16, which NumPy does not have."""
        return np.dtype(np.float32 if self._cache_type == FLOAT32 else np.uint16)

    @property
    def weight_type(self) -> NumberType:
        return self._weights.type

    def packed_zeros(self, outputs: int, inputs: int) -> Array:
        return self._weights.zeros(outputs, inputs)

    def stacked_outputs(self, outputs: int) -> int:
        """Rounds up to whole panels, because each matrix begins with one."""
        return -(-outputs // PANEL) * PANEL

    @property
    def packs_any_float(self) -> bool:
        return True

    def pack(self, packed: Array, first_output: int, rows: Array) -> int:
        return self._weights.pack(packed, first_output, rows)

    @property
    def keeps_integers(self) -> bool:
        return isinstance(self._weights, Int8Weights)

    def pack_integers(self, packed: Array, first_output: int, numbers: Array, scales: FloatArray) -> None:
        assert isinstance(self._weights, Int8Weights)
        self._weights.pack_integers(packed, first_output, numbers, scales)

    def adapter_store(
        self, shapes: Mapping[str, AdaptedShape], adapters: Sequence[Ranks], slots: int
    ) -> AdapterStore:
        return NativeAdapters(shapes, adapters, slots, self.as_parameter)

    def cache_shapes(
        self, shape: AttentionShape, geometry: CacheGeometry
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        blocks, size = geometry.num_blocks + 1, geometry.block_size
        keys = (blocks, shape.kv_heads, shape.head_dim, size)
        return keys, (blocks, shape.kv_heads, size, padded_head(shape.head_dim))
