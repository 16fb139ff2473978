"""The layouts in which the C++ kernels keep matrices, by the type of their numbers: csrc/linear_*.h."""

import numpy as np

from mindbatch.kernels.arrays import Arena, Array, FloatArray
from mindbatch.kernels.memory import BFLOAT16, FLOAT32, INT8, NumberType
from mindbatch.kernels.native_library import NativeLibrary

PANEL = 32  # outputs per packed panel: kPanel in csrc/variant_table.h
_KINDS = {FLOAT32: 0, BFLOAT16: 1, INT8: 2}  # WeightKind there
_STORED = {np.dtype(np.float32): 0, np.dtype(np.uint16): 1, np.dtype(np.float16): 2}  # StoredKind there
_DEPTHS = {BFLOAT16: 32, INT8: 64}  # inputs are padded to as many: padded_depth there
_TAILS = {BFLOAT16: 0, INT8: 8 * PANEL}  # bytes of a panel beside its numbers: kInt8Tail there


class NativeWeights:
    """Packs matrices of a type, and names the functions of the library that take them.

    suffix: of the names of these functions.
    """

    def __init__(self, kind: NumberType, library: NativeLibrary) -> None:
        self.type, self.suffix = kind, "" if kind == FLOAT32 else f"_{kind.name}"
        self._library, self._arena = library, Arena()

    def zeros(self, outputs: int, inputs: int) -> Array:
        panels = -(-outputs // PANEL)
        if self.type == FLOAT32:
            return self._arena.zeros((panels, inputs, PANEL), np.dtype(np.float32))
        whole = _DEPTHS[self.type]
        depth = -(-inputs // whole) * whole
        size = depth * PANEL * self.type.itemsize + _TAILS[self.type]
        return self._arena.zeros((panels, size), np.dtype(np.int8))

    def pack(self, packed: Array, first_output: int, rows: Array) -> int:
        """Packs rows in the library, which rounds them where the type is not float32."""
        assert packed.flags.c_contiguous
        return self._library.pack(_KINDS[self.type], _STORED[rows.dtype], rows, packed, first_output)


class Int8Weights(NativeWeights):
    """[panels]([inputs / 4, PANEL, 4] int8, scales [PANEL] float32, 128 * sums of outputs [PANEL] int32)."""

    def pack_integers(self, packed: Array, first_output: int, numbers: Array, scales: FloatArray) -> None:
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


def native_weights(kind: NumberType, library: NativeLibrary) -> NativeWeights:
    return Int8Weights(INT8, library) if kind == INT8 else NativeWeights(kind, library)
