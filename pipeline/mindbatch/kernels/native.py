"""The C++ CPU kernels: what they keep, and the functions of the library by operation."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mindbatch.kernels.adapters import AdaptedShape, AdapterStore, Ranks
from mindbatch.kernels.arrays import Array, FloatArray
from mindbatch.kernels.interface import Kernels, ProgramKernels
from mindbatch.kernels.meetings import ProcessGroups
from mindbatch.kernels.memory import BFLOAT16, FLOAT32, INT8, FloatType, NumberType, padded_head
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.kernels.native_program import NativeProgram, OutputMemory
from mindbatch.kernels.native_weights import PANEL, NativeAdapters, NativeWeights
from mindbatch.kernels.recording import RecordedCall, Recording
from mindbatch.kernels.shapes import (
    AttentionShape,
    CacheGeometry,
    CacheShapes,
    ConvolutionShape,
    DeltaShape,
    ExpertsShape,
    HeadProductsShape,
)
from mindbatch.parallel.topology import Stage, TensorSlice, Topology


class NativeStorage(Kernels):
    """How the functions of csrc/ take weights, caches and adapters, whoever calls them."""

    name = "native"
    packs_any_float = True

    def __init__(
        self, library: NativeLibrary, weights: NumberType = FLOAT32, cache: FloatType = FLOAT32
    ) -> None:
        """weights, cache: what matrices, and keys and values, are kept in; all else is float32."""
        self.library = library
        self._cache_type = cache
        self.meetings = ProcessGroups(library)
        self._weights = NativeWeights(weights, library)
        of_cache = "" if cache == FLOAT32 else f"_{cache.name}"
        is_rounded = weights in (BFLOAT16, INT8)
        self.functions = NativeFunctions(self.meetings, self._weights.suffix, of_cache, is_rounded=is_rounded)

    def meet(self, topology: Topology, rank: int, secret: bytes | None) -> None:
        """Joins the other ranks in memory that they share, or through MPI."""
        self.meetings.enter(topology, rank, secret)

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

    def pack(self, packed: Array, first_output: int, rows: Array) -> int:
        return self._weights.pack(packed, first_output, rows)

    @property
    def keeps_integers(self) -> bool:
        return self._weights.type == INT8

    def pack_integers(self, packed: Array, first_output: int, numbers: Array, scales: FloatArray) -> None:
        self._weights.pack_integers(packed, first_output, numbers, scales)

    def adapter_store(
        self, shapes: Mapping[str, AdaptedShape], adapters: Sequence[Ranks], slots: int
    ) -> AdapterStore:
        return NativeAdapters(shapes, adapters, slots, self.as_parameter)

    def cache_shapes(self, shape: AttentionShape, geometry: CacheGeometry) -> CacheShapes:
        blocks, size = geometry.num_blocks + 1, geometry.block_size
        keys = (blocks, shape.kv_heads, shape.head_dim, size)
        return keys, (blocks, shape.kv_heads, size, padded_head(shape.head_dim))


class NativeKernels(NativeStorage, ProgramKernels):
    """Kernels of csrc/; rows of a batch never influence one another's arithmetic."""

    def can_run(self, shard: TensorSlice, stage: Stage) -> bool:
        return self.meetings.suffice(shard, stage)

    def program(self, recording: Recording, outputs: Sequence[OutputMemory] | None = None) -> NativeProgram:
        return NativeProgram(recording, self.library, outputs, self.meetings.functions)

    def lowered(self, recording: Recording) -> Recording:
        return self.functions.lowered(recording)


ACTIVATIONS = {"gelu_tanh": 0, "gelu": 1, "silu": 2, "relu": 3, "quick_gelu": 4, "sigmoid": 5, "identity": 6}
_NO_VECTOR = np.zeros(1, np.float32)
"""Placeholder that functions take for a vector that a model does not have."""


class NativeFunction(NamedTuple):
    """settings: its last input, where it has one: int32, floats in it by their bits, or float32."""

    name: str
    settings: npt.NDArray[Any] | None = None


def float_bits(value: float) -> int:
    """The int32 with the bits of a float32: settings travel in one integer tensor."""
    return int(np.float32(value).view(np.int32))


def _with_integers(name: str, *settings: int) -> NativeFunction:
    return NativeFunction(name, np.array(settings, np.int32))


def _with_floats(name: str, *settings: float) -> NativeFunction:
    return NativeFunction(name, np.array(settings, np.float32))


_FLOATS: Mapping[str, Sequence[str]] = {
    "add_norm": ["epsilon"],
    "capped": ["cap"],
    "group_norm": ["epsilon"],
    "joined": [],
    "norm": ["epsilon"],
    "router_logits": [],
    "scaled": ["factor"],
    "sum": [],
    "table_rows": [],
    "xielu": ["beta", "epsilon"],
}
"""Operations whose functions are called as they are, and take no settings but these, as they are."""


class NativeFunctions:
    """A method for each operation but those of _FLOATS, of its name and with its settings."""

    def __init__(self, meetings: ProcessGroups, weights: str, cache: str, *, is_rounded: bool) -> None:
        """weights, cache: how names of functions over them end. is_rounded: products of attention may be."""
        self._meetings = meetings
        self._weights, self._cache, self._is_rounded = weights, cache, is_rounded

    def lowered(self, recording: Recording) -> Recording:
        """Turns calls into calls of the library's functions, each with its settings as its last input."""
        calls = [self._lowered(call) for call in recording.calls]
        return Recording(recording.inputs, calls, recording.outputs)

    def _lowered(self, call: RecordedCall) -> RecordedCall:
        function = self.function(call.operation, **call.settings)
        inputs = [_NO_VECTOR if argument is None else argument for argument in call.inputs]
        if function.settings is not None:
            inputs.append(function.settings)
        return RecordedCall(function.name, tuple(inputs if call.outputs else inputs[1:]), call.outputs)

    def function(self, operation: str, **settings: Any) -> NativeFunction:
        if (floats := _FLOATS.get(operation)) is None:
            function: NativeFunction = getattr(self, operation)(**settings)
            return function
        if not floats:
            return NativeFunction(f"mb_{operation}")
        return _with_floats(f"mb_{operation}", *(settings[name] for name in floats))

    def linear(self, outputs: int) -> NativeFunction:
        return NativeFunction(f"mb_linear{self._weights}")

    def adapted_linear(self, outputs: int, shape: AdaptedShape) -> NativeFunction:
        return _with_integers(f"mb_adapted_linear{self._weights}", *shape.widths)

    def embedding(self, width: int) -> NativeFunction:
        return NativeFunction(f"mb_embed{self._weights}")

    def adapted_embedding(self, shape: AdaptedShape) -> NativeFunction:
        return _with_integers(f"mb_adapted_embed{self._weights}", *shape.widths, shape.inputs)

    def experts(self, shape: ExpertsShape) -> NativeFunction:
        routing = shape.routing
        settings = [
            shape.inner,
            ACTIVATIONS[shape.activation],
            routing.chosen,
            routing.is_sigmoid,
            routing.is_normalised,
        ]
        settings += [
            routing.groups,
            routing.chosen_groups,
            routing.group_best,
            float_bits(routing.scale),
            float_bits(shape.limit),
            shape.weighs_inputs,
            shape.has_logits,
        ]
        name = "mb_experts_with_biases" if shape.has_biases else "mb_experts"
        return _with_integers(f"{name}{self._weights}", *settings)

    def head_products(self, shape: HeadProductsShape) -> NativeFunction:
        settings = [shape.heads, shape.stride, shape.first, shape.inputs, shape.outputs]
        return _with_integers(f"mb_head_products{self._weights}", *settings)

    def columns(self, first: int, count: int) -> NativeFunction:
        return _with_integers("mb_columns", first)

    def latent_heads(self, heads: int, rope: int) -> NativeFunction:
        return _with_integers("mb_latent_heads", rope)

    def ids_from(self, first: int) -> NativeFunction:
        return _with_integers("mb_ids_from", first)

    def activation(self, kind: str, gated: bool) -> NativeFunction:
        return _with_integers("mb_activation", ACTIVATIONS[kind], gated)

    def rotary_angles(self, inverse_frequencies: Sequence[float], scale: float) -> NativeFunction:
        return _with_floats("mb_rotary_angles", *inverse_frequencies, scale)

    def rotary(
        self, shape: AttentionShape, epsilon: float, is_interleaved: bool, in_halves: bool
    ) -> NativeFunction:
        sizes = [shape.heads, shape.kv_heads, shape.head_dim]
        return _with_integers("mb_rotary", *sizes, float_bits(epsilon), 2 if in_halves else is_interleaved)

    def tempered(self, shape: AttentionShape, floor: float, factor: float) -> NativeFunction:
        return _with_floats("mb_tempered", shape.heads * shape.head_dim, floor, factor)

    def square_sums(self, shape: AttentionShape) -> NativeFunction:
        return _with_integers("mb_square_sums", *shape.widths[:2])

    def norm_by_sums(self, shape: AttentionShape, epsilon: float, totals: tuple[int, int]) -> NativeFunction:
        return _with_floats("mb_norm_by_sums", epsilon, *totals)

    def attention(self, shape: AttentionShape) -> NativeFunction:
        window = -shape.window if shape.is_chunked else shape.window
        settings = [shape.heads, shape.head_dim, window, *map(float_bits, (shape.scale, shape.softcap))]
        settings.append(int(self._is_rounded))
        if shape.alibi is not None:
            settings += [int(shape.alibi.is_rounded), float_bits(shape.alibi.factor)]
            settings += map(float_bits, shape.alibi.slopes)
        name = "mb_attention_with_sinks" if shape.has_sinks else "mb_attention"
        return _with_integers(f"{name}{self._cache}", *settings)

    def distance_attention(self, shape: AttentionShape, within_step: bool) -> NativeFunction:
        return self._of_heads("mb_relative_attention", shape)

    def cross_attention(self, shape: AttentionShape) -> NativeFunction:
        return self._of_heads("mb_cross_attention", shape)

    def _of_heads(self, name: str, shape: AttentionShape) -> NativeFunction:
        settings = (shape.heads, shape.head_dim, float_bits(shape.scale), shape.window)
        return _with_integers(f"{name}{self._cache}", *settings)

    def write_cache(self, shape: AttentionShape) -> NativeFunction:
        return _with_integers(f"mb_write_cache{self._cache}", shape.heads, shape.head_dim)

    def causal_convolution(self, shape: ConvolutionShape) -> NativeFunction:
        return _with_integers("mb_causal_convolution", shape.is_activated)

    def gated_delta(self, shape: DeltaShape) -> NativeFunction:
        sizes = (shape.key_heads, shape.value_heads, shape.key_dim, shape.value_dim)
        return _with_integers("mb_gated_delta", *sizes)

    def gated(self, kind: str, width: int, first: int, epsilon: float) -> NativeFunction:
        return _with_integers("mb_gated", ACTIVATIONS[kind], first, float_bits(epsilon))

    def all_reduce(self, shard: TensorSlice) -> NativeFunction:
        return _with_integers("mb_all_reduce", self._meetings.slices[shard])

    def all_gather(self, shard: TensorSlice, total: int) -> NativeFunction:
        return _with_integers("mb_all_gather", self._meetings.slices[shard])

    def send_hidden(self, stage: int, tensor_rank: int) -> NativeFunction:
        return _with_integers("mb_hand_over", self._meetings.hand_overs[stage])

    def receive_hidden(self, stage: int, tensor_rank: int, width: int) -> NativeFunction:
        return _with_integers("mb_take_over", self._meetings.hand_overs[stage - 1])
