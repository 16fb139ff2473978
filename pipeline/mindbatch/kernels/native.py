"""The C++ CPU kernels: what they keep, and the functions of the library by operation."""

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import chain
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
from mindbatch.kernels.shapes import AttentionShape, CacheGeometry, CacheShapes
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


_INTEGERS: Mapping[str, Sequence[str]] = {
    "activation": ["kind", "gated"],
    "adapted_embedding": ["shape.widths", "shape.inputs"],
    "adapted_linear": ["shape.widths"],
    "causal_convolution": ["shape.is_activated"],
    "columns": ["first"],
    "cross_attention": ["shape.heads", "shape.head_dim", "shape.scale", "shape.window"],
    "distance_attention": ["shape.heads", "shape.head_dim", "shape.scale", "shape.window"],
    "embedding": [],
    "experts": [
        *("shape.inner", "shape.activation", "shape.routing.chosen", "shape.routing.is_sigmoid"),
        *("shape.routing.is_normalised", "shape.routing.groups", "shape.routing.chosen_groups"),
        *("shape.routing.group_best", "shape.routing.scale", "shape.limit", "shape.weighs_inputs"),
        "shape.has_logits",
    ],
    "gated": ["kind", "first", "epsilon"],
    "gated_delta": ["shape.key_heads", "shape.value_heads", "shape.key_dim", "shape.value_dim"],
    "head_products": ["shape.heads", "shape.stride", "shape.first", "shape.inputs", "shape.outputs"],
    "ids_from": ["first"],
    "joined": [],
    "latent_heads": ["rope"],
    "linear": [],
    "router_logits": [],
    "sum": [],
    "table_rows": [],
    "write_cache": ["shape.heads", "shape.head_dim"],
}
"""By operation, which of its settings its function takes as int32: see `_integers`."""
_FLOATS: Mapping[str, Sequence[str]] = {
    "add_norm": ["epsilon"],
    "capped": ["cap"],
    "group_norm": ["epsilon"],
    "norm": ["epsilon"],
    "norm_by_sums": ["epsilon", "totals"],
    "rotary_angles": ["inverse_frequencies", "scale"],
    "scaled": ["factor"],
    "xielu": ["beta", "epsilon"],
}
"""The same of functions that take float32."""
_SENT_BY_BITS = {"epsilon", "limit", "scale", "softcap"}
_NAMES = {
    "adapted_embedding": "adapted_embed",
    "distance_attention": "relative_attention",
    "embedding": "embed",
}
"""By operation, the name of its function where it has another."""
_OVER_WEIGHTS = {"adapted_embedding", "adapted_linear", "embedding", "experts", "head_products", "linear"}
_OVER_CACHE = {"attention", "cross_attention", "distance_attention", "write_cache"}


def _integers(name: str, value: Any) -> list[int]:
    """The int32 of a setting: a float's bits, an activation's number, those of all parts of a tuple."""
    if isinstance(value, tuple):
        return [number for part in value for number in _integers(name, part)]
    if name.rpartition(".")[2] in _SENT_BY_BITS:
        return [int(np.float32(value).view(np.int32))]
    return [ACTIVATIONS[value] if isinstance(value, str) else int(value)]


def _setting(settings: Mapping[str, Any], name: str) -> Any:
    """The setting of a name, or what it has behind the dots."""
    first, *others = name.split(".")
    return reduce(getattr, others, settings[first])


class NativeFunctions:
    """The library's function for each operation: by the tables above, or a method of the operation's name."""

    def __init__(self, meetings: ProcessGroups, weights: str, cache: str, *, is_rounded: bool) -> None:
        """weights, cache: how names of functions over them end. is_rounded: products of attention may be."""
        self._meetings = meetings
        self._endings = dict.fromkeys(_OVER_WEIGHTS, weights) | dict.fromkeys(_OVER_CACHE, cache)
        self._is_rounded = is_rounded

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
        make = getattr(self, operation, None)
        if make is not None:
            function: NativeFunction = make(**settings)
            return function
        numbers: npt.NDArray[Any] | None = None
        if operation in _FLOATS:
            numbers = np.hstack([_setting(settings, name) for name in _FLOATS[operation]]).astype(np.float32)
        elif names := _INTEGERS[operation]:
            values = (_integers(name, _setting(settings, name)) for name in names)
            numbers = np.array([*chain.from_iterable(values)], np.int32)
        variant = "_with_biases" if operation == "experts" and settings["shape"].has_biases else ""
        return NativeFunction(self._name(operation, variant), numbers)

    def _name(self, operation: str, variant: str = "") -> str:
        return f"mb_{_NAMES.get(operation, operation)}{variant}{self._endings.get(operation, '')}"

    def rotary(
        self, shape: AttentionShape, epsilon: float, is_interleaved: bool, in_halves: bool
    ) -> NativeFunction:
        pairs = 2 if in_halves else int(is_interleaved)
        sizes = [shape.heads, shape.kv_heads, shape.head_dim, *_integers("epsilon", epsilon), pairs]
        return NativeFunction("mb_rotary", np.array(sizes, np.int32))

    def tempered(self, shape: AttentionShape, floor: float, factor: float) -> NativeFunction:
        return NativeFunction("mb_tempered", np.array([shape.widths[0], floor, factor], np.float32))

    def square_sums(self, shape: AttentionShape) -> NativeFunction:
        return NativeFunction("mb_square_sums", np.array(shape.widths[:2], np.int32))

    def attention(self, shape: AttentionShape) -> NativeFunction:
        window = -shape.window if shape.is_chunked else shape.window
        settings = [shape.heads, shape.head_dim, window]
        settings += [*_integers("scale", shape.scale), *_integers("softcap", shape.softcap)]
        settings.append(int(self._is_rounded))
        if (alibi := shape.alibi) is not None:
            settings += [int(alibi.is_rounded), *_integers("scale", (alibi.factor, *alibi.slopes))]
        name = self._name("attention", "_with_sinks" if shape.has_sinks else "")
        return NativeFunction(name, np.array(settings, np.int32))

    def all_reduce(self, shard: TensorSlice) -> NativeFunction:
        return _at_meeting("mb_all_reduce", self._meetings.slices[shard])

    def all_gather(self, shard: TensorSlice, total: int) -> NativeFunction:
        return _at_meeting("mb_all_gather", self._meetings.slices[shard])

    def send_hidden(self, stage: int, tensor_rank: int) -> NativeFunction:
        return _at_meeting("mb_hand_over", self._meetings.hand_overs[stage])

    def receive_hidden(self, stage: int, tensor_rank: int, width: int) -> NativeFunction:
        return _at_meeting("mb_take_over", self._meetings.hand_overs[stage - 1])


def _at_meeting(name: str, number: int) -> NativeFunction:
    return NativeFunction(name, np.array([number], np.int32))
