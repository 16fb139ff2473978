"""Kernels whose cells MindSpore compiles, and what all of them compute with its operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.common.np_dtype import bfloat16

from mindbatch.kernels.adapters import AdapterStore
from mindbatch.kernels.arrays import Array, FloatArray
from mindbatch.kernels.gathered_adapters import GatheredAdapters, GatheredEmbedding, GatheredLinear
from mindbatch.kernels.graphs import AdaptedHeadGraph, AdaptedTokenGraph, TokenGraph
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.low_rank import AdaptedShape, Ranks
from mindbatch.kernels.plain_cells import (
    Capped,
    IdsFrom,
    Joined,
    NormBySums,
    RotaryAngles,
    Scaled,
    SquareSums,
    Sum,
    TableRows,
)
from mindbatch.kernels.shapes import AttentionShape, CacheGeometry
from mindbatch.kernels.tensors import constant, shared_parameter
from mindbatch.parallel.collectives import all_gather, all_reduce
from mindbatch.parallel.context import initialise
from mindbatch.parallel.hand_over import ReceiveHidden, SendHidden
from mindbatch.parallel.topology import TensorSlice


class MindSporeKernels(Kernels):
    """Operations are cells of MindSpore, weights and caches its parameters."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """See `Kernels.dtype`; bfloat16 is MindSpore's addition to NumPy."""
        return np.dtype(bfloat16 if self.float_type.name == "bfloat16" else self.float_type.name)

    def set_up(self) -> None:
        """See `Kernels.set_up`."""
        initialise(self.device_target)

    def held(self, name: str, array: Array) -> Parameter:
        return shared_parameter(name, array)

    def raised(self, vector: Parameter | Array, offset: float) -> Tensor:
        return self.fixed(self.floats(vector) + np.float32(offset))

    def floats(self, weight: Parameter | Array) -> FloatArray:
        assert isinstance(weight, Tensor)
        found: FloatArray = weight.asnumpy().astype(np.float32)
        return found

    def fixed(self, numbers: FloatArray) -> Tensor:
        return constant(numbers, np.float32)

    def zeros(self, width: int) -> Tensor:
        return constant(np.zeros(width), self.dtype)

    def adapter_store(
        self, shapes: Mapping[str, AdaptedShape], adapters: Sequence[Ranks], slots: int
    ) -> AdapterStore:
        is_shared = self.device_target == "CPU"
        return GatheredAdapters(shapes, adapters, slots, self.dtype, is_shared=is_shared)

    def adapted_linear(self, outputs: int, shape: AdaptedShape) -> nn.Cell:
        return GatheredLinear(self.linear(outputs))

    def adapted_embedding(self, shape: AdaptedShape) -> nn.Cell:
        return GatheredEmbedding(self.embedding(shape.widths[0]))

    def table_rows(self) -> nn.Cell:
        return TableRows()

    def ids_from(self, first: int) -> nn.Cell:
        return IdsFrom(first)

    def scaled(self, factor: float) -> nn.Cell:
        return Scaled(factor)

    def capped(self, cap: float) -> nn.Cell:
        return Capped(cap)

    def square_sums(self, shape: AttentionShape) -> nn.Cell:
        return SquareSums(shape)

    def norm_by_sums(self, shape: AttentionShape, epsilon: float, totals: tuple[int, int]) -> nn.Cell:
        return NormBySums(shape, epsilon, totals)

    def joined(self) -> nn.Cell:
        return Joined()

    def sum(self) -> nn.Cell:
        return Sum()

    def rotary_angles(self, inverse_frequencies: Sequence[float], scale: float) -> nn.Cell:
        return RotaryAngles(inverse_frequencies, scale)

    def all_reduce(self, shard: TensorSlice) -> nn.Cell:
        return all_reduce(shard)

    def all_gather(self, shard: TensorSlice, total: int) -> nn.Cell:
        return all_gather(shard, total)

    def send_hidden(self, stage: int, tensor_rank: int) -> nn.Cell:
        return SendHidden(stage, tensor_rank)

    def receive_hidden(self, stage: int, tensor_rank: int, width: int) -> nn.Cell:
        return ReceiveHidden(stage, tensor_rank, width, self.absent().dtype)

    def for_graph(self, graph: str) -> MindSporeKernels:
        """The kernels whose cells compute another kind of step, from the same weights and cache."""
        return self

    def step_graph(self, cell: nn.Cell, geometry: CacheGeometry, *, adapted: bool = False) -> nn.Cell:
        """The outermost cell over one that takes (ids, positions, step, adapters), which gives float32.

        adapted: it takes the slots of the tokens' adapters, too, as its last input.
        """
        return AdaptedTokenGraph(cell) if adapted else TokenGraph(cell)

    def head_graph(self, head: nn.Cell, *, adapted: bool = False) -> nn.Cell:
        """The outermost cell over the head alone: hidden states [S, hidden_size] to logits, all float32.

        adapted: it takes the slots [S] of the tokens' adapters, too.
        """
        return AdaptedHeadGraph(head) if adapted else head
