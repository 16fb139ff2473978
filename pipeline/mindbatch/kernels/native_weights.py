"""The layouts in which the C++ kernels keep matrices (csrc/linear_*.h), by type of number, and adapters."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mindbatch.kernels.adapters import (
    WHOLE_WEIGHT,
    AdaptedParameter,
    AdaptedShape,
    AdapterParts,
    AdapterStore,
    LowRankPart,
    Ranks,
    WholePart,
)
from mindbatch.kernels.arrays import Arena, Array, FloatArray, PackedArray, aligned_zeros
from mindbatch.kernels.memory import BFLOAT16, FLOAT32, INT8, NumberType
from mindbatch.kernels.native_codes import PANEL
from mindbatch.kernels.native_library import NativeLibrary

_KINDS = {FLOAT32: 0, BFLOAT16: 1, INT8: 2}  # WeightKind there
_STORED = {np.dtype(np.float32): 0, np.dtype(np.uint16): 1, np.dtype(np.float16): 2}  # StoredKind there
_DEPTHS = {BFLOAT16: 32, INT8: 64}  # inputs are padded to as many: padded_depth there
_TAILS = {BFLOAT16: 0, INT8: 8 * PANEL}  # bytes of a panel beside its numbers: kInt8Tail there


MAX_PACKED_SEGMENTS = 256  # two to the power of kMostLevels in csrc/variant_table.h
_SEGMENT_INPUTS = {FLOAT32: 128, INT8: 256}
"""The fewest inputs of a segment. Short chains of float32 are more exact; int8 has scales for each segment,
and half as many inputs would cost it some 5% of its speed for nothing that was measured."""


def finer_segments(kind: NumberType, inputs: int, segments: int) -> int:
    """The segments that a matrix is packed in: those given, halved while they are long.

    Ranks that divide the given ones divide these, too, and add their sums in the same tree.
    """
    least, whole = _SEGMENT_INPUTS.get(kind, inputs), _DEPTHS.get(kind, 1)
    while segments < MAX_PACKED_SEGMENTS and inputs % (2 * segments * whole) == 0:
        if inputs // (2 * segments) < least:
            break
        segments *= 2
    return segments


class NativeWeights:
    """Packs matrices of a type."""

    def __init__(self, kind: NumberType, library: NativeLibrary) -> None:
        self.type = kind
        self._library, self.arena = library, Arena()

    def zeros(self, outputs: int, inputs: int, segments: int = 1) -> PackedArray:
        """[panels, segments, ...], each segment padded by itself."""
        segments = finer_segments(self.type, inputs, segments)
        panels, inputs = -(-outputs // PANEL), inputs // segments
        if self.type == FLOAT32:
            array = self.arena.zeros((panels, segments, inputs, PANEL), np.dtype(np.float32))
        else:
            whole = _DEPTHS[self.type]
            depth = -(-inputs // whole) * whole
            size = depth * PANEL * self.type.itemsize + _TAILS[self.type]
            array = self.arena.zeros((panels, segments, size), np.dtype(np.int8))
        return PackedArray.over(array, self.type.name)

    def pack(self, packed: Array, first_output: int, rows: Array) -> int:
        """Packs rows in the library, which rounds them where the type is not float32."""
        assert packed.flags.c_contiguous
        return self._library.pack(_KINDS[self.type], _STORED[rows.dtype], rows, packed, first_output)

    def pack_integers(self, packed: Array, first_output: int, numbers: Array, scales: FloatArray) -> None:
        """Packs int8 as it is.

        Each segment of a panel: [inputs / 4, PANEL, 4] int8, scales [PANEL] float32, 128 * sums of outputs
        [PANEL] int32.
        """
        for segment, some in enumerate(np.split(numbers, packed.shape[1], 1)):
            self._pack_integers(packed[:, segment], first_output, some, scales)

    def _pack_integers(self, packed: Array, first_output: int, numbers: Array, scales: FloatArray) -> None:
        words = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % 4))).view(np.int32)
        # Kernels add 128 to inputs, for bytes without a sign; this much is then taken off each output.
        offsets = 128 * numbers.sum(axis=1, dtype=np.int32)
        done = 0
        while done < len(numbers):
            panel, column = divmod(first_output + done, PANEL)
            rows = slice(done, min(done + PANEL - column, len(numbers)))
            columns = slice(column, column + rows.stop - done)
            tail = packed[panel, -_TAILS[INT8] :]
            into = packed[panel, : -_TAILS[INT8]].view(np.int32).reshape(-1, PANEL)
            into[: words.shape[1], columns] = words[rows].T
            tail[: 4 * PANEL].view(np.float32)[columns] = scales[rows]
            tail[4 * PANEL :].view(np.int32)[columns] = offsets[rows]
            done = rows.stop


# Outputs of a packed panel, and floats that offsets count: kAdapterPanel in csrc/variant_table.h.
ADAPTER_PANEL = 16
FIELDS = 6  # rank, a, b, scale, offset, whole: of AdapterPart there


def panels(numbers: int) -> int:
    """Panels that so many outputs fill."""
    return -(-numbers // ADAPTER_PANEL)


class NativeAdapters(AdapterStore):
    """One arena for all slots, and a table for each parameter.

    Each slot is a stretch of the arena that the largest adapter fills; another leaves its end unused.

    The first panel of the arena belongs to nobody, so that an offset of 0 means nothing. Memory of a slot
    comes from the system when it is first written.
    """

    def __init__(
        self,
        shapes: Mapping[str, AdaptedShape],
        adapters: Sequence[Ranks],
        slots: int,
        as_parameter: Callable[[str, Array], Any],
    ) -> None:
        self._shapes = shapes
        self._slot_panels = max(self._size(ranks) for ranks in adapters)
        self._arena = aligned_zeros((1 + slots * self._slot_panels, ADAPTER_PANEL), np.dtype(np.float32))
        self._at = 0
        arena = as_parameter("adapters.arena", self._arena)
        self._tables: dict[str, npt.NDArray[np.int32]] = {}
        self.parameters = {}
        for name, shape in shapes.items():
            table = aligned_zeros((slots + 1, len(shape.widths), FIELDS), np.dtype(np.int32))
            self._tables[name] = table
            stored = (arena, as_parameter(f"adapters.{name}.table", table))
            self.parameters[name] = AdaptedParameter(stored, shape)

    def _size(self, ranks: Ranks) -> int:
        """Panels of the arena that an adapter fills at most."""
        return sum(
            _part_size(self._shapes[name], width, rank)
            for name, part_ranks in ranks.items()
            for rank, width in zip(part_ranks, self._shapes[name].widths, strict=True)
        )

    def write(self, slot: int, parts: AdapterParts) -> None:
        self._at = 1 + (slot - 1) * self._slot_panels
        for name, table in self._tables.items():
            table[slot] = 0
            for part in parts.get(name, ()):
                table[slot, part.part] = self._put(part, self._shapes[name])

    def _put(self, part: LowRankPart | WholePart, shape: AdaptedShape) -> tuple[int, ...]:
        """Writes a part to the arena; its fields."""
        if isinstance(part, WholePart):
            return (0, 0, 0, 0, 0, self._pack(part.weight, PANEL))
        a = self._flat(part.a.T) if shape.is_embedding else self._pack(part.a)
        b = self._pack(part.b)
        scale, offset = (0 if vector is None else self._flat(vector) for vector in (part.scale, part.offset))
        return (len(part.a), a, b, scale, offset, 0)

    def _take(self, count: int) -> tuple[int, FloatArray]:
        """The next panels of the slot, and the first one's number."""
        first = self._at
        self._at += count
        return first, self._arena[first : self._at].reshape(-1)

    def _flat(self, array: FloatArray) -> int:
        """Writes an array as it is; returns its first panel."""
        first, memory = self._take(panels(array.size))
        memory[: array.size].reshape(array.shape)[:] = array
        return first

    def _pack(self, matrix: FloatArray, panel: int = ADAPTER_PANEL) -> int:
        """Writes [outputs, inputs] in panels of outputs; returns the first of the arena's panels."""
        outputs, inputs = matrix.shape
        whole, rest = divmod(outputs, panel)
        count = -(-outputs // panel)
        first, memory = self._take(count * inputs * panel // ADAPTER_PANEL)
        packed = memory.reshape(count, inputs, panel)
        packed[:whole] = matrix[: whole * panel].reshape(whole, panel, inputs).swapaxes(1, 2)
        if rest:
            packed[whole] = 0
            packed[whole, :, :rest] = matrix[whole * panel :].T
        return first


def _part_size(shape: AdaptedShape, width: int, rank: int) -> int:
    """Panels of a part with a scale and an offset."""
    if rank == WHOLE_WEIGHT:
        outputs, inputs = (shape.inputs, width) if shape.is_embedding else (width, shape.inputs)
        return -(-outputs // PANEL) * inputs * PANEL // ADAPTER_PANEL
    if rank == 0:
        return 0
    a = panels(rank * shape.inputs) if shape.is_embedding else panels(rank) * shape.inputs
    return a + panels(width) * (rank + 2)
