"""The C++ CPU kernels: what they keep, and the functions of the library by operation."""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from mindbatch.kernels.adapters import AdaptedShape, AdapterStore, Ranks
from mindbatch.kernels.arrays import Array, CacheArray, PackedArray, PackedWeight
from mindbatch.kernels.codes import INT8_BY_OUTPUT, Codes, CodeType, packed_type
from mindbatch.kernels.interface import Kernels, ProgramKernels
from mindbatch.kernels.memory import BFLOAT16, FLOAT32, INT8, FloatType, NumberType, padded_head
from mindbatch.kernels.native_codes import PANEL, coded_zeros, pack_codes
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.kernels.native_program import NativeProgram, OutputMemory
from mindbatch.kernels.native_weights import NativeAdapters, NativeWeights
from mindbatch.kernels.process_groups import ProcessGroups
from mindbatch.kernels.recording import OPERATIONS, RecordedCall, Recording
from mindbatch.kernels.settings import Struct, Words, encoded, input_types, settings_layout, with_extras
from mindbatch.kernels.shapes import (
    AttentionShape,
    CacheGeometry,
    CacheShapes,
    WeightKind,
)
from mindbatch.parallel.topology import Stage, TensorSlice, Topology


class NativeStorage(Kernels):
    """Keeps weights, caches and adapters as the functions of csrc/ take them, in a program or in a graph."""

    name = "native"
    packs_any_float = True
    sums_segments = True

    def __init__(
        self,
        library: NativeLibrary,
        weights: NumberType = FLOAT32,
        cache: FloatType = FLOAT32,
        *,
        keeps_codes: bool = False,
    ) -> None:
        """weights, cache: what matrices, and keys and values, are kept in; all else is float32.

        keeps_codes: True if matrices that are stored as codes are kept as they are.
        """
        self.library = library
        self._cache_type = cache
        self.process_groups = ProcessGroups(library)
        self._weights = NativeWeights(weights, library)
        self._integers = self._weights if weights == INT8 else NativeWeights(INT8, library)
        self._keeps_codes = keeps_codes
        of_cache = "" if cache == FLOAT32 else f"_{cache.name}"
        is_rounded = weights in (BFLOAT16, INT8)
        self.functions = NativeFunctions(self.process_groups, weights.name, of_cache, is_rounded=is_rounded)

    def join_process_groups(self, topology: Topology, rank: int, secret: bytes | None) -> None:
        """Joins the other ranks in memory that they share, or through MPI."""
        self.process_groups.join(topology, rank, secret)

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

    def packed_zeros(self, outputs: int, inputs: int, segments: int = 1) -> Array:
        return self._weights.zeros(outputs, inputs, segments)

    def stacked_outputs(self, outputs: int) -> int:
        """Rounds up to whole panels, because each matrix begins with one."""
        return -(-outputs // PANEL) * PANEL

    def pack(self, packed: Array, first_output: int, rows: Array) -> int:
        return self._weights.pack(packed, first_output, rows)

    def code_type(self, stored: Collection[CodeType], inputs: int) -> CodeType | None:
        if self._keeps_codes:
            return packed_type(stored, inputs)
        is_kept = self.weight_type == INT8 and all(kind.has_row_scales for kind in stored)
        return INT8_BY_OUTPUT if is_kept else None

    def coded_zeros(self, kind: CodeType, outputs: int, inputs: int, segments: int = 1) -> Array:
        if kind == INT8_BY_OUTPUT:
            return self._integers.zeros(outputs, inputs, segments)
        return coded_zeros(self._weights.arena, kind, outputs, inputs, segments)

    def pack_codes(self, packed: Array, first_output: int, kind: CodeType, codes: Codes) -> None:
        if kind == INT8_BY_OUTPUT:
            self._integers.pack_integers(packed, first_output, codes.numbers, codes.scales[:, 0])
        else:
            pack_codes(packed, kind, first_output, codes)

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
        return self.process_groups.suffice(shard, stage)

    def program(self, recording: Recording, outputs: Sequence[OutputMemory] | None = None) -> NativeProgram:
        return NativeProgram(recording, self.library, outputs, self.process_groups.functions)

    def lowered(self, recording: Recording) -> Recording:
        return self.functions.lowered(recording)


_GROUP = {"group": int}
EXTRAS: Mapping[str, Mapping[str, Any]] = {
    "attention": {"is_rounded": bool},
    "all_reduce": _GROUP,
    "all_gather": _GROUP,
    "send_hidden": _GROUP,
    "receive_hidden": _GROUP,
}
"""Settings that the library takes behind an operation's own: they depend on the process and its kernels.

is_rounded: products may be computed in bfloat16. group: the number of a process group.
"""
_NO_VECTOR = np.zeros(1, np.float32)
"""Placeholder that functions take for a vector that a model does not have."""


@cache
def operation_layout(operation: str) -> Struct:
    """Layout of the words that the library's function takes."""
    kinds = dict.fromkeys(_kinds(operation).values(), WeightKind)
    extras = {**kinds, **EXTRAS.get(operation, {})}
    return with_extras(settings_layout(OPERATIONS[operation].function), extras)


@cache
def _kinds(operation: str) -> Mapping[int, str]:
    """By the number of each input that is a packed weight, the setting that has its kind."""
    inputs = input_types(OPERATIONS[operation].function).items()
    return {number: f"{name}_kind" for number, (name, hint) in enumerate(inputs) if hint is PackedWeight}


class NativeFunction(NamedTuple):
    """settings: its last input, where the operation has settings."""

    name: str
    settings: Words | None = None


class NativeFunctions:
    """The library's function for each operation: mb_, its name, and the type of its caches."""

    def __init__(self, groups: ProcessGroups, weights: str, cache: str, *, is_rounded: bool) -> None:
        """weights: the kind of those that do not say theirs. cache: how names of functions over caches end.
        is_rounded: see `EXTRAS`."""
        self._groups, self._is_rounded = groups, is_rounded
        self._weights, self._of_cache = weights, cache
        self._functions: dict[tuple[Any, ...], NativeFunction] = {}

    def lowered(self, recording: Recording) -> Recording:
        """Turns calls into calls of the library's functions, each with its settings as its last input."""
        calls = [self._lowered(call) for call in recording.calls]
        return Recording(recording.inputs, calls, recording.outputs)

    def _lowered(self, call: RecordedCall) -> RecordedCall:
        kinds = {
            name: call.inputs[number].kind
            for number, name in _kinds(call.operation).items()
            if isinstance(call.inputs[number], PackedArray)
        }
        function = self.function(call.operation, **call.settings, **kinds)
        inputs = [_NO_VECTOR if argument is None else argument for argument in call.inputs]
        if function.settings is not None:
            inputs.append(function.settings)
        return RecordedCall(function.name, tuple(inputs if call.outputs else inputs[1:]), call.outputs)

    def function(self, operation: str, **settings: Any) -> NativeFunction:
        """The function with the words of settings, which layers of a model share."""
        key = (operation, *settings.items())
        if key not in self._functions:
            layout = operation_layout(operation)
            kinds = dict.fromkeys(_kinds(operation).values(), self._weights)
            words = encoded(layout, kinds | settings | self._extras(operation, settings))
            self._functions[key] = NativeFunction(self.name(operation), words if layout.parts else None)
        return self._functions[key]

    def name(self, operation: str) -> str:
        has_cache = CacheArray in input_types(OPERATIONS[operation].function).values()
        return f"mb_{operation}{self._of_cache if has_cache else ''}"

    def _extras(self, operation: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        match operation:
            case "attention":
                return {"is_rounded": self._is_rounded}
            case "all_reduce" | "all_gather":
                return {"group": self._groups.slices[settings["shard"]]}
            case "send_hidden":
                return {"group": self._groups.stage_links[settings["stage"]]}
            case "receive_hidden":
                return {"group": self._groups.stage_links[settings["stage"] - 1]}
        return {}
