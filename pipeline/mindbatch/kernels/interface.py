"""What a set of kernels must offer to the layers, and the shapes that both sides agree on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mindspore import Tensor, nn
from mindspore.common.np_dtype import bfloat16

from mindbatch.kernels.adapters import AdapterStore
from mindbatch.kernels.arrays import Array, FloatArray, constant
from mindbatch.kernels.gathered_adapters import GatheredAdapters, GatheredEmbedding, GatheredLinear
from mindbatch.kernels.graphs import AdaptedHeadGraph, AdaptedTokenGraph, TokenGraph
from mindbatch.kernels.low_rank import AdaptedShape, Ranks
from mindbatch.kernels.memory import FLOAT32, FloatType, NumberType
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.kernels.plain_cells import IdsFrom, RotaryAngles, Scaled, Sum, TableRows
from mindbatch.kernels.step import ANY_STEP, Batch, IntArray, Span, StepShape
from mindbatch.parallel.collectives import all_gather, all_reduce
from mindbatch.parallel.hand_over import ReceiveHidden, SendHidden
from mindbatch.parallel.topology import Stage, TensorSlice, Topology


@dataclass(frozen=True)
class AttentionShape:
    """The slice of attention that one rank computes.

    window: number of latest positions a token sees, its own included; 0 for all.
    scale: the factor on query-key products.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int = 0

    @property
    def qkv_width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim


@dataclass(frozen=True)
class CacheGeometry:
    """Size of the paged cache. One block more than num_blocks is allocated: padding is written there."""

    num_blocks: int
    block_size: int


class Kernels(ABC):
    """A way to compute what the layers are made of.

    Methods that return a Cell are called once per layer while a model is built. A "packed" weight is a
    linear layer's [outputs, inputs] matrix in the layout that suits these kernels.

    float_type: of vectors, caches and hidden states. What is read from a checkpoint and what leaves the model
        is float32, which holds the values of every stored type.
    graph: the kind of step (`StepShape.graph`) that cells made by these kernels compute.
    """

    name: str
    device_target: str = "CPU"
    float_type: FloatType = FLOAT32
    graph: str = ANY_STEP

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's form of `float_type`; bfloat16 is MindSpore's addition to NumPy."""
        return np.dtype(bfloat16 if self.float_type.name == "bfloat16" else self.float_type.name)

    @property
    def weight_type(self) -> NumberType:
        """What packed weights are kept in."""
        return self.float_type

    def absent(self) -> Tensor:
        """What stands for a vector that a layer has not: [1] of zero."""
        return constant([0.0], self.dtype)

    @abstractmethod
    def packed_zeros(self, outputs: int, inputs: int) -> Array:
        """Memory for a packed weight, which `pack` fills."""

    @abstractmethod
    def pack(self, packed: Array, first_output: int, rows: FloatArray) -> int:
        """Writes rows [n, inputs] of the weight to its outputs first_output .. first_output + n - 1.

        Returns how many finite numbers the kernels' type of weights does not reach.
        """

    @abstractmethod
    def linear(self, outputs: int) -> nn.Cell:
        """Cell (x [T, inputs], packed weight, bias [outputs] or [1] for none) -> [T, outputs]."""

    def adapter_store(
        self, shapes: Mapping[str, AdaptedShape], adapters: Sequence[Ranks], slots: int
    ) -> AdapterStore:
        """Memory for so many of the adapters at a time.

        shapes: of the parameters that they add to, by name.
        """
        is_shared = self.device_target == "CPU"
        return GatheredAdapters(shapes, adapters, slots, self.dtype, is_shared=is_shared)

    def adapted_linear(self, outputs: int, shape: AdaptedShape) -> nn.Cell:
        """Cell (x, weight, bias, slots [T] int32, *stored) -> [T, outputs].

        As `linear`, and of each token what the adapter in its slot does. stored: of `adapter_store`.
        """
        return GatheredLinear(self.linear(outputs))

    def adapted_embedding(self, shape: AdaptedShape) -> nn.Cell:
        """Cell (ids, packed weight, slots [T] int32, *stored) -> [T, width]; see `adapted_linear`."""
        return GatheredEmbedding(self.embedding(shape.widths[0]))

    @abstractmethod
    def embedding(self, width: int) -> nn.Cell:
        """Cell (ids [T] int32, packed weight [vocabulary, width]) -> [T, width]."""

    def table_rows(self) -> nn.Cell:
        """Cell (numbers [T] int32, table [rows, width], not packed) -> [T, width]."""
        return TableRows()

    def ids_from(self, first: int) -> nn.Cell:
        """Cell (ids [T] int32) -> ids - first: what the embedding takes of a rank with ids from there on."""
        return IdsFrom(first)

    def scaled(self, factor: float) -> nn.Cell:
        """Cell (x [T, width]) -> x * factor."""
        return Scaled(factor)

    def sum(self) -> nn.Cell:
        """Cell (x, y [T, width]) -> x + y."""
        return Sum()

    @abstractmethod
    def norm(self, epsilon: float, centred: bool) -> nn.Cell:
        """Cell (x [T, width], weight, bias or [1]) -> [T, width]; layer norm when centred, else RMS norm."""

    @abstractmethod
    def add_norm(self, epsilon: float, centred: bool) -> nn.Cell:
        """Cell (x, residual or [1], weight, bias or [1]) -> (norm(x + residual), x + residual)."""

    def rotary_angles(self, inverse_frequencies: Sequence[float], scale: float) -> nn.Cell:
        """Cell (positions [T] int32) -> cos, sin [T, rotary_dim / 2] float32, times the scale."""
        return RotaryAngles(inverse_frequencies, scale)

    @abstractmethod
    def rotary(self, shape: AttentionShape, epsilon: float) -> nn.Cell:
        """Cell (qkv, cos, sin [T, rotary_dim / 2], query norm or [1], key norm or [1]) -> qkv."""

    @abstractmethod
    def activation(self, kind: str, gated: bool) -> nn.Cell:
        """Cell (x [T, width], or [T, 2 * width] with the gate first when gated) -> [T, width]."""

    @abstractmethod
    def attention(self, shape: AttentionShape) -> nn.Cell:
        """Cell (qkv, key cache, value cache, *step) -> [T, heads * head_dim].

        step: what the outermost cell (`step_graph`) hands on; see there.
        The step's keys and values are written to the cache before any token attends.
        """

    @abstractmethod
    def cache_shapes(
        self, shape: AttentionShape, geometry: CacheGeometry
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of one layer's key and value cache; the first dimension is the block."""

    def table_width(self, needed: int, maximum: int) -> int:
        """Columns of block_tables for a step whose longest sequence has `needed` blocks.

        A fixed width means one graph fewer; kernels that read the whole table ask for a narrow one.
        """
        return maximum

    def spare_tokens(self, batch_size: int) -> int:
        """Tokens that the padding of a step may add to its bucket, where it holds batch_size sequences."""
        return 0

    def step_shape(
        self, spans: Sequence[Span], pad: Callable[[int], int], capacity: int, attention: AttentionShape
    ) -> StepShape:
        """The graph that computes a step, and its sizes after padding.

        spans: positions (first, one past the last) of each sequence in the step.
        pad: from a number of tokens to the bucket that holds them.
        capacity: tokens that a block table has room for. attention: of any layer.
        """
        tokens = pad(sum(stop - start for start, stop in spans))
        return StepShape(ANY_STEP, tokens, tokens)

    def graph_inputs(self, batch: Batch, shape: StepShape, geometry: CacheGeometry) -> Sequence[IntArray]:
        """What the outermost cell takes, of a step that is laid out in `shape.tokens` tokens."""
        return [array for array in batch if array is not None]

    def meet(self, topology: Topology, rank: int, name: str) -> None:  # noqa: B027 - by default it cannot
        """Lets a local rank meet the others, all on this host, otherwise than through MindSpore if it can.

        name: the same for these ranks and for no others of the host. It is asked before any cell is made.

        Raises:
            MindBatchError: the other ranks have not come.
        """

    def all_reduce(self, shard: TensorSlice) -> nn.Cell:
        """Cell x -> its sum over the ranks of the slice; [T, width] on each."""
        return all_reduce(shard)

    def all_gather(self, shard: TensorSlice, total: int) -> nn.Cell:
        """Cell x [T, width] on each rank of the slice -> [T, total], side by side; the rest is padding."""
        return all_gather(shard, total)

    def send_hidden(self, stage: int, tensor_rank: int) -> nn.Cell:
        """Cell x [T, width] -> x, handed over by a rank of a stage to its fellow of the next one."""
        return SendHidden(stage, tensor_rank)

    def receive_hidden(self, stage: int, tensor_rank: int, width: int) -> nn.Cell:
        """Cell (ids [T]) -> [T, width], what the fellow of the stage before hands over."""
        return ReceiveHidden(stage, tensor_rank, width, self.absent().dtype)

    def recorder(self, shard: TensorSlice, stage: Stage) -> Recorder | None:
        """Kernels whose cells are recorded as a program, for a rank of a model; None where they are compiled.

        It is asked after `meet`.
        """
        return None

    def for_graph(self, graph: str) -> Kernels:
        """The kernels whose cells compute another kind of step, from the same weights and cache."""
        return self

    def for_single_tokens(self) -> Kernels:
        """The kernels for a model whose one graph takes every token as a sequence of its own."""
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


class Recorder(NamedTuple):
    """Kernels whose cells are recorded, and the library that runs what they call."""

    kernels: Kernels
    library: NativeLibrary
