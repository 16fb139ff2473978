"""What a set of kernels must offer to the layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mindbatch.kernels.adapters import AdapterStore
from mindbatch.kernels.arrays import Array, FloatArray
from mindbatch.kernels.layer import Operation
from mindbatch.kernels.low_rank import AdaptedShape, Ranks
from mindbatch.kernels.memory import FLOAT32, FloatType, NumberType
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.kernels.shapes import AttentionShape, CacheGeometry, ExpertsShape, HeadProductsShape
from mindbatch.kernels.step import ANY_STEP, Batch, IntArray, Span, StepShape
from mindbatch.parallel.topology import Stage, TensorSlice, Topology

if TYPE_CHECKING:
    from mindspore import Parameter, Tensor


class Kernels(ABC):
    """A way to compute what the layers are made of.

    Methods that return an operation, a "cell", are called once per layer while a model is built: it is
    recorded as a call of a program, or compiled by MindSpore (`MindSporeKernels`). A "packed" weight is a
    linear layer's [outputs, inputs] matrix in the layout that suits these kernels.

    float_type: of vectors and hidden states. What is read from a checkpoint and what leaves the model
        is float32, which holds the values of every stored type.
    graph: the kind of step (`StepShape.graph`) that cells made by these kernels compute.
    """

    name: str
    device_target: str = "CPU"
    float_type: FloatType = FLOAT32
    graph: str = ANY_STEP

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's form of `float_type`."""
        return np.dtype(self.float_type.name)

    @property
    def cache_type(self) -> FloatType:
        """What cached keys and values are kept in."""
        return self.float_type

    @property
    def cache_dtype(self) -> np.dtype[Any]:
        """NumPy's form of `cache_type`, or of the bits of its numbers."""
        return self.dtype

    @property
    def weight_type(self) -> NumberType:
        """What packed weights are kept in."""
        return self.float_type

    def held(self, name: str, array: Array) -> Parameter | Array:
        """A weight or a cache, as cells of these kernels take it: over the array's own memory.

        name: in a model's description.
        """
        return array

    def raised(self, vector: Parameter | Array, offset: float) -> Tensor | Array:
        """vector + offset in float32, where the vector is `held`."""
        assert isinstance(vector, np.ndarray)
        return vector.astype(np.float32) + np.float32(offset)

    def floats(self, weight: Parameter | Array) -> FloatArray:
        """The numbers of a weight that is not packed."""
        return np.asarray(weight, np.float32)

    def fixed(self, numbers: FloatArray) -> Tensor | Array:
        """Numbers that were made of weights, as cells take them."""
        return numbers

    def absent(self) -> Tensor | Array:
        """What stands for a vector that a layer has not: [1] of zero."""
        return self.zeros(1)

    def zeros(self, width: int) -> Tensor | Array:
        """A vector [width] of zeros, of `float_type`."""
        return np.zeros(width, self.dtype)

    @abstractmethod
    def packed_zeros(self, outputs: int, inputs: int) -> Array:
        """Memory for a packed weight, which `pack` fills."""

    def packed_stack(self, matrices: int, outputs: int, inputs: int) -> Array:
        """Memory for so many packed matrices of one size, which `pack` fills one after another.

        Each begins `stacked_outputs(outputs)` outputs behind the one before.
        """
        return self.packed_zeros(matrices * self.stacked_outputs(outputs), inputs)

    def stacked_outputs(self, outputs: int) -> int:
        """Outputs from one matrix of a packed stack to the next, of matrices with so many each."""
        return outputs

    @property
    def packs_any_float(self) -> bool:
        """Whether `pack` takes float32, float16 and the bits of bfloat16 (uint16), or its own dtype only."""
        return False

    @abstractmethod
    def pack(self, packed: Array, first_output: int, rows: Array) -> int:
        """Writes rows [n, inputs] of the weight to its outputs first_output .. first_output + n - 1.

        Returns how many finite numbers the kernels' type of weights does not reach.
        """

    def pack_integers(self, packed: Array, first_output: int, numbers: Array, scales: FloatArray) -> None:
        """The same of int8 [n, inputs] with a scale [n] for each output, as they are; of `keeps_integers`."""
        raise NotImplementedError

    @property
    def keeps_integers(self) -> bool:
        """Whether weights are packed as int8 with a scale for each output."""
        return False

    @abstractmethod
    def linear(self, outputs: int) -> Operation:
        """Cell (x [T, inputs], packed weight, bias [outputs] or [1] for none) -> [T, outputs]."""

    @abstractmethod
    def experts(self, shape: ExpertsShape) -> Operation:
        """Cell (x [T, width], router [experts, width], correction [experts] or [1], up, down) -> [T, width].

        router, correction: float32. up, down: packed stacks of [2 * inner, width], the gate first, and
        [width, inner] of each expert.
        The weighted outputs of a row's experts are added in the order of the experts.
        """

    @abstractmethod
    def head_products(self, shape: HeadProductsShape) -> Operation:
        """Cell (x [T, width], packed stack of [outputs, inputs] for each head) -> [T, heads * outputs]."""

    @abstractmethod
    def columns(self, first: int, count: int) -> Operation:
        """Cell (x [T, width]) -> [T, count]: the numbers of each row from `first` on."""

    @abstractmethod
    def latent_heads(self, heads: int, rope: int) -> Operation:
        """Cell (queries, absorbed [T, heads * rank], keys, latents [T, rank]) -> qkv of one key/value head.

        queries, keys: with heads * rope and with rope numbers at the end of each row, which will be rotated.
        Each query is [rope, rank]: these, and what was absorbed; so is the key, with the latent, and the
        value is the key once more.
        """

    @abstractmethod
    def adapter_store(
        self, shapes: Mapping[str, AdaptedShape], adapters: Sequence[Ranks], slots: int
    ) -> AdapterStore:
        """Memory for so many of the adapters at a time.

        shapes: of the parameters that they add to, by name.
        """

    @abstractmethod
    def adapted_linear(self, outputs: int, shape: AdaptedShape) -> Operation:
        """Cell (x, weight, bias, slots [T] int32, *stored) -> [T, outputs].

        As `linear`, and of each token what the adapter in its slot does. stored: of `adapter_store`.
        """

    @abstractmethod
    def adapted_embedding(self, shape: AdaptedShape) -> Operation:
        """Cell (ids, packed weight, slots [T] int32, *stored) -> [T, width]; see `adapted_linear`."""

    @abstractmethod
    def embedding(self, width: int) -> Operation:
        """Cell (ids [T] int32, packed weight [vocabulary, width]) -> [T, width]."""

    @abstractmethod
    def table_rows(self) -> Operation:
        """Cell (numbers [T] int32, table [rows, width], not packed) -> [T, width]."""

    @abstractmethod
    def ids_from(self, first: int) -> Operation:
        """Cell (ids [T] int32) -> ids - first: what the embedding takes of a rank with ids from there on."""

    @abstractmethod
    def scaled(self, factor: float) -> Operation:
        """Cell (x [T, width]) -> x * factor."""

    @abstractmethod
    def capped(self, cap: float) -> Operation:
        """Cell (x [T, width]) -> cap * tanh(x / cap)."""

    @abstractmethod
    def sum(self) -> Operation:
        """Cell (x, y [T, width]) -> x + y."""

    @abstractmethod
    def joined(self) -> Operation:
        """Cell (x [T, a], y [T, b]) -> [T, a + b], side by side."""

    @abstractmethod
    def norm(self, epsilon: float, centred: bool) -> Operation:
        """Cell (x [T, width], weight, bias or [1]) -> [T, width]; layer norm when centred, else RMS norm."""

    @abstractmethod
    def add_norm(self, epsilon: float, centred: bool) -> Operation:
        """Cell (x, residual or [1], weight, bias or [1]) -> (norm(x + residual), x + residual)."""

    @abstractmethod
    def rotary_angles(self, inverse_frequencies: Sequence[float], scale: float) -> Operation:
        """Cell (positions [T] or [T, P] int32) -> cos, sin [T, rotary_dim / 2] float32, times the scale.

        Of several positions, one after another, each has all of the frequencies.
        """

    @abstractmethod
    def rotary(
        self,
        shape: AttentionShape,
        epsilon: float,
        is_interleaved: bool = False,
        *,
        in_halves: bool = False,
    ) -> Operation:
        """Cell (qkv, cos, sin [T, rotary_dim / 2], query norm or [1], key norm or [1]) -> qkv.

        A norm as long as a head is of each head, one as long as all heads is of all together.
        is_interleaved: the numbers of a pair are neighbours; else they are half of rotary_dim apart.
        in_halves: each half of a head is rotated as if it were one, by half of the angles.
        """

    @abstractmethod
    def square_sums(self, shape: AttentionShape) -> Operation:
        """Cell (qkv) -> [T, 2] float32: of each token the sums of the squares of its query and its key."""

    @abstractmethod
    def norm_by_sums(self, shape: AttentionShape, epsilon: float, totals: tuple[int, int]) -> Operation:
        """Cell (qkv, sums [T, 2], query norm, key norm) -> qkv: an RMS norm of query and key.

        The mean squares are those of more heads than a rank has. totals: numbers in each of the sums.
        """

    @abstractmethod
    def activation(self, kind: str, gated: bool) -> Operation:
        """Cell (x [T, width], or [T, 2 * width] with the gate first when gated) -> [T, width]."""

    @abstractmethod
    def attention(self, shape: AttentionShape) -> Operation:
        """Cell (qkv, key cache, value cache, *step) -> [T, heads * head_dim].

        step: what the outermost cell hands on; see `MindSporeKernels.step_graph`.
        The step's keys and values are written to the cache before any token attends.
        """

    @abstractmethod
    def distance_attention(self, shape: AttentionShape, *, within_step: bool) -> Operation:
        """Cell (qkv, key cache, value cache, *step, bias [heads, 2 * farthest + 1]) -> [T, heads * head_dim].

        step: slots, rows, block tables, lengths, firsts and positions, of which a token sees [first, length).
        A score gets the bias of key - own position, counted from -farthest on.
        within_step: the step has all tokens of its rows, which see each other.
        """

    @abstractmethod
    def cross_attention(self, shape: AttentionShape) -> Operation:
        """Cell (queries, key cache, value cache, rows, block tables, lengths) -> [T, heads * head_dim]."""

    @abstractmethod
    def write_cache(self, shape: AttentionShape) -> Operation:
        """Cell (x, keys and values [T, 2 * kv_heads * head_dim], key cache, value cache, slots) -> x.

        What is computed of the x that it gives finds them written.
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
        capacity: tokens that a block table has room for. attention: of a layer with the narrowest window.
        """
        tokens = pad(sum(stop - start for start, stop in spans))
        return StepShape(ANY_STEP, tokens, tokens)

    def graph_inputs(self, batch: Batch, shape: StepShape, geometry: CacheGeometry) -> Sequence[IntArray]:
        """What the outermost cell takes, of a step that is laid out in `shape.tokens` tokens."""
        return [array for array in batch if array is not None]

    def set_up(self) -> None:  # noqa: B027 - by default there is nothing to do
        """Prepares the device; before any cell is made.

        Raises:
            ConfigError: this machine does not have it.
        """

    def meet(self, topology: Topology, rank: int, secret: bytes) -> None:  # noqa: B027 - by default it cannot
        """Lets a local rank meet the others, all on this host, otherwise than through MindSpore if it can.

        secret: known to these ranks and to nobody else. It is asked before any cell is made.

        Raises:
            MindBatchError: the other ranks have not come.
        """

    @abstractmethod
    def all_reduce(self, shard: TensorSlice) -> Operation:
        """Cell x -> its sum over the ranks of the slice; [T, width] on each."""

    @abstractmethod
    def all_gather(self, shard: TensorSlice, total: int) -> Operation:
        """Cell x [T, width] on each rank of the slice -> [T, total], side by side; the rest is padding."""

    @abstractmethod
    def send_hidden(self, stage: int, tensor_rank: int) -> Operation:
        """Cell x [T, width] -> x, handed over by a rank of a stage to its fellow of the next one."""

    @abstractmethod
    def receive_hidden(self, stage: int, tensor_rank: int, width: int) -> Operation:
        """Cell (ids [T]) -> [T, width], what the fellow of the stage before hands over."""

    def program_library(self, shard: TensorSlice, stage: Stage) -> NativeLibrary | None:
        """The library whose functions the cells for a rank of a model call, so that they can be recorded.

        None where they are MindSpore's. It is asked after `meet`.
        """
        return None

    def for_single_tokens(self) -> Kernels:
        """The kernels for a model whose one graph takes every token as a sequence of its own."""
        return self
