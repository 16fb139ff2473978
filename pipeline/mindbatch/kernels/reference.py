"""The operations as NumPy declares them: slow, plain, and what the fast kernels are tested against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mindbatch.kernels.adapters import AdaptedShape, AdapterStore, Ranks, SlotArrays
from mindbatch.kernels.arrays import Array, aligned_zeros
from mindbatch.kernels.interface import ProgramKernels
from mindbatch.kernels.native_program import OutputMemory
from mindbatch.kernels.recording import OPERATIONS, Recording, Symbol
from mindbatch.kernels.shapes import AttentionShape, CacheGeometry, CacheShapes
from mindbatch.parallel.topology import Stage, TensorSlice


class ReferenceKernels(ProgramKernels):
    """NumPy's functions; used where no C++ compiler was there. One rank computes a model."""

    name = "reference"

    def packed_zeros(self, outputs: int, inputs: int, segments: int = 1) -> Array:
        return aligned_zeros((outputs, inputs), self.dtype)

    def pack(self, packed: Array, first_output: int, rows: Array) -> int:
        packed[first_output : first_output + len(rows)] = rows
        return 0

    def adapter_store(
        self, shapes: Mapping[str, AdaptedShape], adapters: Sequence[Ranks], slots: int
    ) -> AdapterStore:
        return SlotArrays(shapes, slots, self.dtype, self.as_parameter)

    def cache_shapes(self, shape: AttentionShape, geometry: CacheGeometry) -> CacheShapes:
        size = (geometry.num_blocks + 1, geometry.block_size, shape.kv_heads, shape.head_dim)
        return size, size

    def can_run(self, shard: TensorSlice, stage: Stage) -> bool:
        return shard.size == 1 and stage.count == 1

    def lowered(self, recording: Recording) -> Recording:
        return recording

    def program(
        self, recording: Recording, outputs: Sequence[OutputMemory] | None = None
    ) -> ReferenceProgram:
        return ReferenceProgram(recording)


class ReferenceProgram:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        values: dict[Symbol, Any] = dict(zip(self._recording.inputs, inputs, strict=True))
        for call in self._recording.calls:
            arguments = [
                values[argument] if isinstance(argument, Symbol) else argument for argument in call.inputs
            ]
            results = OPERATIONS[call.operation].function(*arguments, **call.settings)
            values.update(zip(call.outputs, results if len(call.outputs) > 1 else [results], strict=False))
        return [np.ascontiguousarray(values[symbol]) for symbol in self._recording.outputs]
