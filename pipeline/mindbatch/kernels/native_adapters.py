"""Adapters as the C++ kernels read them: one arena for all slots, and a table for each parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mindbatch.kernels.adapters import AdaptedParameter, AdapterStore
from mindbatch.kernels.arrays import FloatArray, aligned_zeros, shared_parameter
from mindbatch.kernels.low_rank import AdaptedShape, AdapterParts, Ranks

PANEL = 16  # outputs of a packed panel, and floats that offsets count: kAdapterPanel in csrc/variant_table.h
FIELDS = 6  # rank, a, b, scale, offset, whole: of AdapterPart in csrc/variant_table.h


def panels(numbers: int) -> int:
    """Panels that so many outputs fill."""
    return -(-numbers // PANEL)


class NativeAdapters(AdapterStore):
    """Each slot is a stretch of the arena that the largest adapter fills; another leaves its end unused.

    The first panel of the arena belongs to nobody, so that an offset of 0 means nothing. Memory of a slot
    comes from the system when it is first written.
    """

    def __init__(self, shapes: Mapping[str, AdaptedShape], adapters: Sequence[Ranks], slots: int) -> None:
        self._shapes = shapes
        self._slot_panels = max(self._size(ranks) for ranks in adapters)
        self._arena = aligned_zeros((1 + slots * self._slot_panels, PANEL), np.dtype(np.float32))
        arena = shared_parameter("adapters.arena", self._arena)
        self._tables: dict[str, npt.NDArray[np.int32]] = {}
        self.parameters = {}
        for name, shape in shapes.items():
            table = aligned_zeros((slots + 1, len(shape.widths), FIELDS), np.dtype(np.int32))
            self._tables[name] = table
            stored = (arena, shared_parameter(f"adapters.{name}.table", table))
            self.parameters[name] = AdaptedParameter(stored, shape.widths)

    def _size(self, ranks: Ranks) -> int:
        """Panels of the arena that an adapter fills."""
        return sum(
            panels(rank) * self._shapes[name].inputs + panels(width) * rank
            for name, each in ranks.items()
            for rank, width in zip(each, self._shapes[name].widths, strict=True)
        )

    def write(self, slot: int, parts: AdapterParts) -> None:
        """See `AdapterStore.write`."""
        at = 1 + (slot - 1) * self._slot_panels
        for name, table in self._tables.items():
            table[slot] = 0
            for part, a, b in parts.get(name, ()):
                second = at + self._pack(at, a)
                table[slot, part, :3] = len(a), at, second
                at = second + self._pack(second, b)

    def _pack(self, first: int, matrix: FloatArray) -> int:
        """Writes [outputs, inputs] in panels of outputs from a panel of the arena on; returns its panels."""
        outputs, inputs = matrix.shape
        whole, rest = divmod(outputs, PANEL)
        count = panels(outputs) * inputs
        packed = self._arena[first : first + count].reshape(panels(outputs), inputs, PANEL)
        packed[:whole] = matrix[: whole * PANEL].reshape(whole, PANEL, inputs).swapaxes(1, 2)
        if rest:
            packed[whole] = 0
            packed[whole, :, :rest] = matrix[whole * PANEL :].T
        return count
