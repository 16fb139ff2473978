"""The layouts in which the C++ kernels keep matrices, by the type of their numbers: csrc/linear_*.h."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from mindbatch.kernels.arrays import Array, FloatArray, aligned_zeros
from mindbatch.kernels.memory import BFLOAT16, FLOAT32, INT8, NumberType
from mindbatch.kernels.native_library import NativeLibrary

PANEL = 32  # outputs per packed panel: kPanel in csrc/variant_table.h
_KINDS = {BFLOAT16: 1, INT8: 2}  # WeightKind there
_DEPTHS = {BFLOAT16: 32, INT8: 64}  # inputs are padded to as many: padded_depth there
_TAILS = {BFLOAT16: 0, INT8: 8 * PANEL}  # bytes of a panel beside its numbers: kInt8Tail there


class NativeWeights(ABC):
    """How matrices are packed, and which functions of the library take them.

    suffix: of the names of these functions.
    """

    type: NumberType
    suffix: str

    @abstractmethod
    def zeros(self, outputs: int, inputs: int) -> Array:
        """Memory for a packed matrix."""

    @abstractmethod
    def pack(self, packed: Array, first_output: int, rows: FloatArray) -> int:
        """See `Kernels.pack`."""


class Float32Weights(NativeWeights):
    """[panels, inputs, PANEL]."""

    type, suffix = FLOAT32, ""

    def zeros(self, outputs: int, inputs: int) -> Array:
        return aligned_zeros((-(-outputs // PANEL), inputs, PANEL), np.dtype(np.float32))

    def pack(self, packed: Array, first_output: int, rows: FloatArray) -> int:
        done = 0
        while done < len(rows):
            panel, column = divmod(first_output + done, PANEL)
            count = min(PANEL - column, len(rows) - done)
            packed[panel, :, column : column + count] = rows[done : done + count].T
            done += count
        return 0


class RoundedWeights(NativeWeights):
    """[panels, bytes of a panel], rounded and laid out by the library."""

    def __init__(self, kind: NumberType, library: NativeLibrary) -> None:
        self.type, self.suffix = kind, f"_{kind.name}"
        self._library = library

    def zeros(self, outputs: int, inputs: int) -> Array:
        whole = _DEPTHS[self.type]
        depth = -(-inputs // whole) * whole
        size = depth * PANEL * self.type.itemsize + _TAILS[self.type]
        return aligned_zeros((-(-outputs // PANEL), size), np.dtype(np.int8))

    def pack(self, packed: Array, first_output: int, rows: FloatArray) -> int:
        assert packed.flags.c_contiguous
        assert rows.dtype == np.float32
        return self._library.pack(_KINDS[self.type], rows, packed, first_output)


def native_weights(kind: NumberType, library: NativeLibrary) -> NativeWeights:
    """The layout for numbers of a type."""
    return Float32Weights() if kind == FLOAT32 else RoundedWeights(kind, library)
