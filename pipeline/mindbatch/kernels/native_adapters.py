"""Adapters as the C++ kernels read them: one arena for all slots, and a table for each parameter."""

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
from mindbatch.kernels.arrays import Array, FloatArray, aligned_zeros

PANEL = 16  # outputs of a packed panel, and floats that offsets count: kAdapterPanel in csrc/variant_table.h
WEIGHT_PANEL = 32  # outputs of a packed panel of a whole weight: kPanel there
FIELDS = 6  # rank, a, b, scale, offset, whole: of AdapterPart there


def panels(numbers: int) -> int:
    """Panels that so many outputs fill."""
    return -(-numbers // PANEL)


class NativeAdapters(AdapterStore):
    """Each slot is a stretch of the arena that the largest adapter fills; another leaves its end unused.

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
        self._arena = aligned_zeros((1 + slots * self._slot_panels, PANEL), np.dtype(np.float32))
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
            return (0, 0, 0, 0, 0, self._pack(part.weight, WEIGHT_PANEL))
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

    def _pack(self, matrix: FloatArray, panel: int = PANEL) -> int:
        """Writes [outputs, inputs] in panels of outputs; returns the first of the arena's panels."""
        outputs, inputs = matrix.shape
        whole, rest = divmod(outputs, panel)
        count = -(-outputs // panel)
        first, memory = self._take(count * inputs * panel // PANEL)
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
        return -(-outputs // WEIGHT_PANEL) * inputs * WEIGHT_PANEL // PANEL
    if rank == 0:
        return 0
    a = panels(rank * shape.inputs) if shape.is_embedding else panels(rank) * shape.inputs
    return a + panels(width) * (rank + 2)
