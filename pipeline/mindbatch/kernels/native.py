"""The C++ CPU kernels as MindSpore cells."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mindspore import nn

from mindbatch.kernels.adapters import AdapterStore
from mindbatch.kernels.arrays import Array, FloatArray
from mindbatch.kernels.interface import AttentionShape, CacheGeometry, Kernels, Recorder
from mindbatch.kernels.low_rank import AdaptedShape, Ranks
from mindbatch.kernels.memory import FLOAT32, NumberType, padded_head
from mindbatch.kernels.native_adapters import NativeAdapters
from mindbatch.kernels.native_cells import (
    Infer,
    MakeCell,
    first_type,
    float32,
    graph_cells,
    second_type,
)
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.kernels.native_weights import native_weights
from mindbatch.kernels.program.recording import RecordedCell
from mindbatch.parallel.shared_file import shared_file
from mindbatch.parallel.topology import Stage, TensorSlice, Topology, hand_over_group

ACTIVATIONS = {"gelu_tanh": 0, "gelu": 1, "silu": 2, "relu": 3}

Shape = list[int]


def float_bits(value: float) -> int:
    """The int32 with the bits of a float32: settings travel in one integer tensor."""
    return int(np.float32(value).view(np.int32))


class NativeKernels(Kernels):
    """Kernels of csrc/; rows of a batch never influence one another's arithmetic."""

    name = "native"

    def __init__(
        self, library: NativeLibrary, weights: NumberType = FLOAT32, make_cell: MakeCell | None = None
    ) -> None:
        """weights: what matrices are kept in; all else is float32.
        make_cell: what cells are; by default they are compiled."""
        self._library = library
        self._weights = native_weights(weights, library)
        self._cell = make_cell or graph_cells(library.path)
        self._slices: tuple[TensorSlice, int] | None = None  # and the number of their meeting
        self._hand_overs: dict[int, int] = {}  # meetings by the stage that hands over

    def recorder(self, shard: TensorSlice, stage: Stage) -> Recorder | None:
        """See `Kernels.recorder`. What ranks do together must be functions of the library, too."""
        neighbours = [sender for sender in (stage.index - 1, stage.index) if 0 <= sender < stage.count - 1]
        if not self._meets(shard) or not all(sender in self._hand_overs for sender in neighbours):
            return None
        kernels = NativeKernels(self._library, self._weights.type, RecordedCell)
        kernels._slices, kernels._hand_overs = self._slices, self._hand_overs
        return Recorder(kernels, self._library)

    def _meets(self, shard: TensorSlice) -> bool:
        """Whether a rank is alone with its slice, or meets the others in shared memory."""
        return shard.size == 1 or (self._slices is not None and self._slices[0] == shard)

    def meet(self, topology: Topology, rank: int, name: str) -> None:
        """See `Kernels.meet`: in memory that they share."""
        shard, place = topology.slice_of(rank), topology.coordinates(rank)
        if shard.size > 1:
            self._slices = shard, self._join(f"{name}-{place.stage}", shard)
        # With the stage before first, so that none waits for another in a circle.
        for sender in (place.stage - 1, place.stage):
            if 0 <= sender < topology.pipeline_stage - 1:
                end = TensorSlice(place.stage - sender, 2)
                group = hand_over_group(sender, place.tensor_rank)
                self._hand_overs[sender] = self._join(f"{name}-{group}", end)

    def _join(self, name: str, shard: TensorSlice) -> int:
        """Enters a meeting of this host; its number in this process."""
        file = shared_file(name, shard, self._library.meeting_bytes(shard.size))
        try:
            return self._library.join_meeting(file, shard.rank, shard.size)
        finally:
            os.close(file)

    def all_reduce(self, shard: TensorSlice) -> nn.Cell:
        if self._slices is None or shard != self._slices[0]:
            return super().all_reduce(shard)
        return self._meeting_cell("mb_all_reduce", lambda x, settings: x, self._slices[1])

    def all_gather(self, shard: TensorSlice, total: int) -> nn.Cell:
        if self._slices is None or shard != self._slices[0]:
            return super().all_gather(shard, total)
        return self._meeting_cell("mb_all_gather", lambda x, settings: [x[0], total], self._slices[1])

    def send_hidden(self, stage: int, tensor_rank: int) -> nn.Cell:
        if stage not in self._hand_overs:
            return super().send_hidden(stage, tensor_rank)
        return self._meeting_cell("mb_hand_over", lambda x, settings: x, self._hand_overs[stage])

    def receive_hidden(self, stage: int, tensor_rank: int, width: int) -> nn.Cell:
        if stage - 1 not in self._hand_overs:
            return super().receive_hidden(stage, tensor_rank, width)
        number = self._hand_overs[stage - 1]
        return self._meeting_cell("mb_take_over", lambda ids, settings: [ids[0], width], number, float32)

    def _meeting_cell(self, name: str, shape: Infer, number: int, dtype: Infer = first_type) -> nn.Cell:
        return self._cell(name, shape, dtype, np.array([number], np.int32))

    def _product(self, name: str) -> str:
        """The function that does it with matrices as they are kept."""
        return name + self._weights.suffix

    @property
    def weight_type(self) -> NumberType:
        """See `Kernels.weight_type`."""
        return self._weights.type

    def packed_zeros(self, outputs: int, inputs: int) -> Array:
        """See `Kernels.packed_zeros`."""
        return self._weights.zeros(outputs, inputs)

    def pack(self, packed: Array, first_output: int, rows: FloatArray) -> int:
        return self._weights.pack(packed, first_output, rows)

    def linear(self, outputs: int) -> nn.Cell:
        def shape(x: Shape, weight: Shape, bias: Shape) -> Shape:
            return [x[0], outputs]

        return self._cell(self._product("mb_linear"), shape, first_type, None)

    def adapter_store(
        self, shapes: Mapping[str, AdaptedShape], adapters: Sequence[Ranks], slots: int
    ) -> AdapterStore:
        return NativeAdapters(shapes, adapters, slots)

    def adapted_linear(self, outputs: int, shape: AdaptedShape) -> nn.Cell:
        def output(x: Shape, *others: Shape) -> Shape:
            return [x[0], outputs]

        settings = np.array(shape.widths, np.int32)
        return self._cell(self._product("mb_adapted_linear"), output, first_type, settings)

    def adapted_embedding(self, shape: AdaptedShape) -> nn.Cell:
        def output(ids: Shape, weight: Shape, *others: Shape) -> Shape:
            return [ids[0], shape.widths[0]]

        settings = np.array([*shape.widths, shape.inputs], np.int32)
        return self._cell(self._product("mb_adapted_embed"), output, float32, settings)

    def embedding(self, width: int) -> nn.Cell:
        def shape(ids: Shape, weight: Shape) -> Shape:
            return [ids[0], width]

        return self._cell(self._product("mb_embed"), shape, float32, None)

    def norm(self, epsilon: float, centred: bool) -> nn.Cell:
        def shape(x: Shape, weight: Shape, bias: Shape, settings: Shape) -> Shape:
            return x

        settings = np.array([epsilon], np.float32)
        return self._cell("mb_norm", shape, first_type, settings)

    def add_norm(self, epsilon: float, centred: bool) -> nn.Cell:
        def shape(
            x: Shape, residual: Shape, weight: Shape, bias: Shape, settings: Shape
        ) -> tuple[Shape, Shape]:
            return x, x

        def dtype(x: Any, *others: Any) -> tuple[Any, Any]:
            return x, x

        settings = np.array([epsilon], np.float32)
        return self._cell("mb_add_norm", shape, dtype, settings)

    def rotary_angles(self, inverse_frequencies: Sequence[float], scale: float) -> nn.Cell:
        def shape(positions: Shape, frequencies: Shape) -> tuple[Shape, Shape]:
            return positions + [frequencies[0] - 1], positions + [frequencies[0] - 1]

        def dtype(*others: Any) -> tuple[Any, Any]:
            return float32(), float32()

        settings = np.array([*inverse_frequencies, scale], np.float32)
        return self._cell("mb_rotary_angles", shape, dtype, settings)

    def table_rows(self) -> nn.Cell:
        def shape(numbers: Shape, table: Shape) -> Shape:
            return [numbers[0], table[1]]

        return self._cell("mb_table_rows", shape, second_type, None)

    def scaled(self, factor: float) -> nn.Cell:
        return self._cell("mb_scaled", lambda x, settings: x, first_type, np.array([factor], np.float32))

    def ids_from(self, first: int) -> nn.Cell:
        return self._cell("mb_ids_from", lambda ids, settings: ids, first_type, np.array([first], np.int32))

    def sum(self) -> nn.Cell:
        return self._cell("mb_sum", lambda x, y: x, first_type, None)

    def rotary(self, shape: AttentionShape, epsilon: float) -> nn.Cell:
        def output(qkv: Shape, *others: Shape) -> Shape:
            return qkv

        settings = [shape.heads, shape.kv_heads, shape.head_dim, float_bits(epsilon)]
        return self._cell("mb_rotary", output, first_type, np.array(settings, np.int32))

    def activation(self, kind: str, gated: bool) -> nn.Cell:
        def shape(x: Shape, settings: Shape) -> Shape:
            return [x[0], x[1] // 2 if gated else x[1]]

        settings = np.array([ACTIVATIONS[kind], int(gated)], np.int32)
        return self._cell("mb_activation", shape, first_type, settings)

    def attention(self, shape: AttentionShape) -> nn.Cell:
        def output(qkv: Shape, *others: Shape) -> Shape:
            return [qkv[0], shape.heads * shape.head_dim]

        settings = [shape.heads, shape.head_dim, shape.window, float_bits(shape.scale)]
        return self._cell("mb_attention", output, first_type, np.array(settings, np.int32))

    def cache_shapes(
        self, shape: AttentionShape, geometry: CacheGeometry
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        blocks, size = geometry.num_blocks + 1, geometry.block_size
        keys = (blocks, shape.kv_heads, shape.head_dim, size)
        return keys, (blocks, shape.kv_heads, size, padded_head(shape.head_dim))
