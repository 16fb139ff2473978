"""The C++ CPU kernels as MindSpore cells."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops

from mindbatch.kernels.adapters import AdapterStore
from mindbatch.kernels.arrays import Array, FloatArray, constant
from mindbatch.kernels.interface import AttentionShape, CacheGeometry, Kernels
from mindbatch.kernels.low_rank import AdaptedShape, Ranks
from mindbatch.kernels.memory import padded_head
from mindbatch.kernels.native_adapters import NativeAdapters
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.parallel.shared_file import shared_file
from mindbatch.parallel.topology import TensorSlice

PANEL = 32  # outputs per packed panel: kPanel in csrc/variant_table.h
ACTIVATIONS = {"gelu_tanh": 0, "gelu": 1, "silu": 2, "relu": 3}

Shape = list[int]


def float_bits(value: float) -> int:
    """The int32 with the bits of a float32: settings travel in one integer tensor."""
    return int(np.float32(value).view(np.int32))


class NativeCell(nn.Cell):
    """Calls one function of the library; `settings` is passed as its last input."""

    def __init__(self, function: str, shape: Callable[..., Any], dtype: Callable[..., Any], settings: Tensor):
        super().__init__()
        self.operator = ops.Custom(function, shape, dtype, "aot")
        self.settings = settings

    def construct(self, *inputs: Tensor) -> Any:
        return self.operator(*inputs, self.settings)


class NativeOperator(nn.Cell):
    """Calls one function of the library that has no settings."""

    def __init__(self, function: str, shape: Callable[..., Any], dtype: Callable[..., Any]):
        super().__init__()
        self.operator = ops.Custom(function, shape, dtype, "aot")

    def construct(self, *inputs: Tensor) -> Any:
        return self.operator(*inputs)


def first_type(*types: Any) -> Any:
    """The output has the first input's dtype."""
    return types[0]


def second_type(*types: Any) -> Any:
    """The output has the second input's dtype."""
    return types[1]


class NativeKernels(Kernels):
    """float32 kernels of csrc/; rows of a batch never influence one another's arithmetic."""

    name = "native"

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library
        self._meeting: TensorSlice | None = None

    def meet(self, shard: TensorSlice, name: str) -> bool:
        """See `Kernels.meet`: in memory that they share, once a process, for all its models."""
        nbytes = self._library.meeting_bytes(shard.size)
        if shard.size > 1 and nbytes:
            file = shared_file(name, shard, nbytes)
            self._library.join_meeting(file, shard.rank, shard.size)
            os.close(file)
            self._meeting = shard
        return self._meeting is not None

    def all_reduce(self, shard: TensorSlice) -> nn.Cell:
        if shard != self._meeting:
            return super().all_reduce(shard)
        return NativeOperator(self._function("mb_all_reduce"), lambda x: x, first_type)

    def all_gather(self, shard: TensorSlice, total: int) -> nn.Cell:
        if shard != self._meeting:
            return super().all_gather(shard, total)
        return NativeOperator(self._function("mb_all_gather"), lambda x: [x[0], total], first_type)

    def _function(self, name: str) -> str:
        return f"{self._library.path}:{name}"

    def packed_shape(self, outputs: int, inputs: int) -> tuple[int, ...]:
        return (-(-outputs // PANEL), inputs, PANEL)

    def pack(self, packed: Array, first_output: int, rows: FloatArray) -> None:
        done = 0
        while done < len(rows):
            panel, column = divmod(first_output + done, PANEL)
            count = min(PANEL - column, len(rows) - done)
            packed[panel, :, column : column + count] = rows[done : done + count].T
            done += count

    def linear(self, outputs: int) -> nn.Cell:
        def shape(x: Shape, weight: Shape, bias: Shape) -> Shape:
            return [x[0], outputs]

        return NativeOperator(self._function("mb_linear"), shape, first_type)

    def adapter_store(
        self, shapes: Mapping[str, AdaptedShape], adapters: Sequence[Ranks], slots: int
    ) -> AdapterStore:
        if not self._library.has_adapters:
            return super().adapter_store(shapes, adapters, slots)
        return NativeAdapters(shapes, adapters, slots)

    def adapted_linear(self, outputs: int, widths: Sequence[int]) -> nn.Cell:
        if not self._library.has_adapters:
            return super().adapted_linear(outputs, widths)

        def shape(x: Shape, *others: Shape) -> Shape:
            return [x[0], outputs]

        settings = constant(widths, np.int32)
        return NativeCell(self._function("mb_adapted_linear"), shape, first_type, settings)

    def embedding(self) -> nn.Cell:
        def shape(ids: Shape, weight: Shape) -> Shape:
            return [ids[0], weight[1]]

        return NativeOperator(self._function("mb_embed"), shape, second_type)

    def norm(self, epsilon: float, centred: bool) -> nn.Cell:
        def shape(x: Shape, weight: Shape, bias: Shape, settings: Shape) -> Shape:
            return x

        settings = constant([epsilon], np.float32)
        return NativeCell(self._function("mb_norm"), shape, first_type, settings)

    def add_norm(self, epsilon: float, centred: bool) -> nn.Cell:
        def shape(
            x: Shape, residual: Shape, weight: Shape, bias: Shape, settings: Shape
        ) -> tuple[Shape, Shape]:
            return x, x

        def dtype(x: Any, *others: Any) -> tuple[Any, Any]:
            return x, x

        settings = constant([epsilon], np.float32)
        return NativeCell(self._function("mb_add_norm"), shape, dtype, settings)

    def rotary(self, shape: AttentionShape, epsilon: float) -> nn.Cell:
        def output(qkv: Shape, *others: Shape) -> Shape:
            return qkv

        settings = [shape.heads, shape.kv_heads, shape.head_dim, float_bits(epsilon)]
        return NativeCell(self._function("mb_rotary"), output, first_type, constant(settings, np.int32))

    def activation(self, kind: str, gated: bool) -> nn.Cell:
        def shape(x: Shape, settings: Shape) -> Shape:
            return [x[0], x[1] // 2 if gated else x[1]]

        settings = constant([ACTIVATIONS[kind], int(gated)], np.int32)
        return NativeCell(self._function("mb_activation"), shape, first_type, settings)

    def attention(self, shape: AttentionShape) -> nn.Cell:
        def output(qkv: Shape, *others: Shape) -> Shape:
            return [qkv[0], shape.heads * shape.head_dim]

        settings = [shape.heads, shape.head_dim, shape.window, float_bits(shape.scale)]
        return NativeCell(self._function("mb_attention"), output, first_type, constant(settings, np.int32))

    def cache_shapes(
        self, shape: AttentionShape, geometry: CacheGeometry
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        blocks, size = geometry.num_blocks + 1, geometry.block_size
        keys = (blocks, shape.kv_heads, shape.head_dim, size)
        return keys, (blocks, shape.kv_heads, size, padded_head(shape.head_dim))
