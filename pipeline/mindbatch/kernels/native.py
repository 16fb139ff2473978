"""The C++ CPU kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mindbatch.kernels.adapters import AdapterStore
from mindbatch.kernels.arrays import Array, FloatArray
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.layer import Identity, Operation
from mindbatch.kernels.low_rank import AdaptedShape, Ranks
from mindbatch.kernels.meetings import Meetings
from mindbatch.kernels.memory import BFLOAT16, FLOAT32, INT8, FloatType, NumberType, padded_head
from mindbatch.kernels.native_adapters import NativeAdapters
from mindbatch.kernels.native_functions import Infer, MakeCell, first_type, float32, second_type
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.kernels.native_weights import PANEL, Int8Weights, native_weights
from mindbatch.kernels.program.recording import RecordedCell
from mindbatch.kernels.shapes import AttentionShape, CacheGeometry, ExpertsShape, HeadProductsShape
from mindbatch.parallel.topology import Stage, TensorSlice, Topology

ACTIVATIONS = {"gelu_tanh": 0, "gelu": 1, "silu": 2, "relu": 3, "quick_gelu": 4}

Shape = list[int]


def float_bits(value: float) -> int:
    """The int32 with the bits of a float32: settings travel in one integer tensor."""
    return int(np.float32(value).view(np.int32))


class NativeKernels(Kernels):
    """Kernels of csrc/; rows of a batch never influence one another's arithmetic."""

    name = "native"

    def __init__(
        self,
        library: NativeLibrary,
        weights: NumberType = FLOAT32,
        cache: FloatType = FLOAT32,
        make_cell: MakeCell = RecordedCell,
    ) -> None:
        """weights, cache: what matrices, and keys and values, are kept in; all else is float32."""
        self.library = library
        self._cache_type = cache
        self.meetings = Meetings(library)
        self._weights = native_weights(weights, library)
        self._cell = make_cell

    def program_library(self, shard: TensorSlice, stage: Stage) -> NativeLibrary | None:
        """See `Kernels.program_library`. What ranks do together must be functions of the library, too."""
        return self.library if self.meetings.suffice(shard, stage) else None

    def meet(self, topology: Topology, rank: int, secret: bytes) -> None:
        """See `Kernels.meet`: in memory that they share."""
        self.meetings.enter(topology, rank, secret)

    def all_reduce(self, shard: TensorSlice) -> Operation:
        if shard.size == 1:
            return Identity()
        return self._meeting_cell("mb_all_reduce", lambda x, settings: x, self.meetings.of_slices(shard))

    def all_gather(self, shard: TensorSlice, total: int) -> Operation:
        if shard.size == 1:
            return Identity()
        number = self.meetings.of_slices(shard)
        return self._meeting_cell("mb_all_gather", lambda x, settings: [x[0], total], number)

    def send_hidden(self, stage: int, tensor_rank: int) -> Operation:
        return self._meeting_cell("mb_hand_over", lambda x, settings: x, self.meetings.hand_overs[stage])

    def receive_hidden(self, stage: int, tensor_rank: int, width: int) -> Operation:
        number = self.meetings.hand_overs[stage - 1]
        return self._meeting_cell("mb_take_over", lambda ids, settings: [ids[0], width], number, float32)

    def _meeting_cell(
        self, name: str, shape: Infer, number: int | None, dtype: Infer = first_type
    ) -> Operation:
        assert number is not None, "ranks that do not meet here meet through MindSpore"
        return self._cell(name, shape, dtype, np.array([number], np.int32))

    def _product(self, name: str) -> str:
        """The function that does it with matrices as they are kept."""
        return name + self._weights.suffix

    @property
    def cache_type(self) -> FloatType:
        """See `Kernels.cache_type`."""
        return self._cache_type

    @property
    def cache_dtype(self) -> np.dtype[Any]:
        """See `Kernels.cache_dtype`: NumPy has no bfloat16."""
        return np.dtype(np.float32 if self._cache_type == FLOAT32 else np.uint16)

    @property
    def weight_type(self) -> NumberType:
        """See `Kernels.weight_type`."""
        return self._weights.type

    def packed_zeros(self, outputs: int, inputs: int) -> Array:
        """See `Kernels.packed_zeros`."""
        return self._weights.zeros(outputs, inputs)

    def stacked_outputs(self, outputs: int) -> int:
        """See `Kernels.stacked_outputs`: each matrix begins with a panel."""
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

    def linear(self, outputs: int) -> Operation:
        def shape(x: Shape, weight: Shape, bias: Shape) -> Shape:
            return [x[0], outputs]

        return self._cell(self._product("mb_linear"), shape, first_type, None)

    def experts(self, shape: ExpertsShape) -> Operation:
        def output(x: Shape, *others: Shape) -> Shape:
            return x

        its = shape.routing
        settings = [shape.inner, ACTIVATIONS[shape.activation], its.chosen, its.is_sigmoid, its.is_normalised]
        settings += [its.groups, its.chosen_groups, its.group_best, float_bits(its.scale)]
        return self._cell(self._product("mb_experts"), output, first_type, np.array(settings, np.int32))

    def head_products(self, shape: HeadProductsShape) -> Operation:
        def output(x: Shape, *others: Shape) -> Shape:
            return [x[0], shape.heads * shape.outputs]

        settings = [shape.heads, shape.stride, shape.first, shape.inputs, shape.outputs]
        name = self._product("mb_head_products")
        return self._cell(name, output, first_type, np.array(settings, np.int32))

    def columns(self, first: int, count: int) -> Operation:
        settings = np.array([first], np.int32)
        return self._cell("mb_columns", lambda x, settings: [x[0], count], first_type, settings)

    def latent_heads(self, heads: int, rope: int) -> Operation:
        def output(queries: Shape, absorbed: Shape, keys: Shape, latents: Shape, settings: Shape) -> Shape:
            return [queries[0], (heads + 2) * (rope + latents[1])]

        return self._cell("mb_latent_heads", output, first_type, np.array([rope], np.int32))

    def adapter_store(
        self, shapes: Mapping[str, AdaptedShape], adapters: Sequence[Ranks], slots: int
    ) -> AdapterStore:
        return NativeAdapters(shapes, adapters, slots, self.held)

    def adapted_linear(self, outputs: int, shape: AdaptedShape) -> Operation:
        def output(x: Shape, *others: Shape) -> Shape:
            return [x[0], outputs]

        settings = np.array(shape.widths, np.int32)
        return self._cell(self._product("mb_adapted_linear"), output, first_type, settings)

    def adapted_embedding(self, shape: AdaptedShape) -> Operation:
        def output(ids: Shape, weight: Shape, *others: Shape) -> Shape:
            return [ids[0], shape.widths[0]]

        settings = np.array([*shape.widths, shape.inputs], np.int32)
        return self._cell(self._product("mb_adapted_embed"), output, float32, settings)

    def embedding(self, width: int) -> Operation:
        def shape(ids: Shape, weight: Shape) -> Shape:
            return [ids[0], width]

        return self._cell(self._product("mb_embed"), shape, float32, None)

    def norm(self, epsilon: float, centred: bool) -> Operation:
        def shape(x: Shape, weight: Shape, bias: Shape, settings: Shape) -> Shape:
            return x

        settings = np.array([epsilon], np.float32)
        return self._cell("mb_norm", shape, first_type, settings)

    def add_norm(self, epsilon: float, centred: bool) -> Operation:
        def shape(
            x: Shape, residual: Shape, weight: Shape, bias: Shape, settings: Shape
        ) -> tuple[Shape, Shape]:
            return x, x

        def dtype(x: Any, *others: Any) -> tuple[Any, Any]:
            return x, x

        settings = np.array([epsilon], np.float32)
        return self._cell("mb_add_norm", shape, dtype, settings)

    def rotary_angles(self, inverse_frequencies: Sequence[float], scale: float) -> Operation:
        def shape(positions: Shape, frequencies: Shape) -> tuple[Shape, Shape]:
            angles = [positions[0], math.prod(positions[1:]) * (frequencies[0] - 1)]
            return angles, angles

        def dtype(*others: Any) -> tuple[Any, Any]:
            return float32(), float32()

        settings = np.array([*inverse_frequencies, scale], np.float32)
        return self._cell("mb_rotary_angles", shape, dtype, settings)

    def table_rows(self) -> Operation:
        def shape(numbers: Shape, table: Shape) -> Shape:
            return [numbers[0], table[1]]

        return self._cell("mb_table_rows", shape, second_type, None)

    def scaled(self, factor: float) -> Operation:
        return self._cell("mb_scaled", lambda x, settings: x, first_type, np.array([factor], np.float32))

    def capped(self, cap: float) -> Operation:
        return self._cell("mb_capped", lambda x, settings: x, first_type, np.array([cap], np.float32))

    def joined(self) -> Operation:
        return self._cell("mb_joined", lambda x, y: [x[0], x[1] + y[1]], first_type, None)

    def ids_from(self, first: int) -> Operation:
        return self._cell("mb_ids_from", lambda ids, settings: ids, first_type, np.array([first], np.int32))

    def sum(self) -> Operation:
        return self._cell("mb_sum", lambda x, y: x, first_type, None)

    def rotary(
        self,
        shape: AttentionShape,
        epsilon: float,
        is_interleaved: bool = False,
        *,
        in_halves: bool = False,
    ) -> Operation:
        def output(qkv: Shape, *others: Shape) -> Shape:
            return qkv

        sizes = [shape.heads, shape.kv_heads, shape.head_dim]
        settings = [*sizes, float_bits(epsilon), 2 if in_halves else int(is_interleaved)]
        return self._cell("mb_rotary", output, first_type, np.array(settings, np.int32))

    def square_sums(self, shape: AttentionShape) -> Operation:
        widths = np.array([shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim], np.int32)
        return self._cell("mb_square_sums", lambda qkv, settings: [qkv[0], 2], first_type, widths)

    def norm_by_sums(self, shape: AttentionShape, epsilon: float, totals: tuple[int, int]) -> Operation:
        settings = np.array([epsilon, *totals], np.float32)
        return self._cell("mb_norm_by_sums", lambda qkv, *others: qkv, first_type, settings)

    def activation(self, kind: str, gated: bool) -> Operation:
        def shape(x: Shape, settings: Shape) -> Shape:
            return [x[0], x[1] // 2 if gated else x[1]]

        settings = np.array([ACTIVATIONS[kind], int(gated)], np.int32)
        return self._cell("mb_activation", shape, first_type, settings)

    def attention(self, shape: AttentionShape) -> Operation:
        def output(qkv: Shape, *others: Shape) -> Shape:
            return [qkv[0], shape.heads * shape.head_dim]

        settings = [shape.heads, shape.head_dim, shape.window, *map(float_bits, (shape.scale, shape.softcap))]
        settings.append(
            int(self._weights.type in (BFLOAT16, INT8))
        )  # products of attention may be rounded, too
        if shape.alibi is not None:
            settings += [int(shape.alibi.is_rounded), float_bits(shape.alibi.factor)]
            settings += map(float_bits, shape.alibi.slopes)
        return self._cell(self._cached("mb_attention"), output, first_type, np.array(settings, np.int32))

    def distance_attention(self, shape: AttentionShape, *, within_step: bool) -> Operation:
        return self._of_heads("mb_relative_attention", shape)

    def cross_attention(self, shape: AttentionShape) -> Operation:
        return self._of_heads("mb_cross_attention", shape)

    def _of_heads(self, name: str, shape: AttentionShape) -> Operation:
        def output(x: Shape, *others: Shape) -> Shape:
            return [x[0], shape.heads * shape.head_dim]

        settings = np.array([shape.heads, shape.head_dim, float_bits(shape.scale)], np.int32)
        return self._cell(self._cached(name), output, first_type, settings)

    def write_cache(self, shape: AttentionShape) -> Operation:
        settings = np.array([shape.heads, shape.head_dim], np.int32)
        name = self._cached("mb_write_cache")
        write = self._cell(name, lambda *shapes: (), lambda *types: (), settings)

        def written(x: Any, *inputs: Any) -> Any:
            write(*inputs)
            return x

        return written

    def _cached(self, name: str) -> str:
        """The function that does it with the cache as it is kept."""
        return name if self._cache_type == FLOAT32 else f"{name}_{self._cache_type.name}"

    def table_width(self, needed: int, maximum: int) -> int:
        """See `Kernels.table_width`. A program takes tables of any width, a graph is compiled for one."""
        return needed if self._cell is RecordedCell else maximum

    def cache_shapes(
        self, shape: AttentionShape, geometry: CacheGeometry
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        blocks, size = geometry.num_blocks + 1, geometry.block_size
        keys = (blocks, shape.kv_heads, shape.head_dim, size)
        return keys, (blocks, shape.kv_heads, size, padded_head(shape.head_dim))
