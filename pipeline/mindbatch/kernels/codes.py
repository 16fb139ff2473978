"""Numbers of matrices that are kept as codes of 4 or 8 bits, as they were published."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # descriptions load no NumPy
    import numpy as np
    import numpy.typing as npt

_FLOAT8 = "float8"
CODE_GROUPS = (128, 64, 32, 16)
"""Numbers of inputs that a scale of codes may be for in a packed matrix, the largest first."""


@dataclass(frozen=True)
class CodeType:
    """Numbers of 4 or 8 bits that are weights divided by a scale, less an offset where there are some.

    numbers: "int4", of -8 to 7; "float4", E2M1 doubled; "int8"; or "float8", E4M3.
    group: number of neighbouring inputs that have a scale together; None for all.
    """

    numbers: str
    group: int | None = None
    has_offsets: bool = False

    @property
    def kind(self) -> str:
        """The `WeightKind` of a packed matrix."""
        return f"{self.numbers}_groups" if self.numbers == "int8" and self.group else self.numbers

    @property
    def has_row_scales(self) -> bool:
        """True for whole numbers with one scale, and nothing more, for each output."""
        return self.numbers in ("int4", "int8") and self.group is None and not self.has_offsets

    @property
    def bits(self) -> int:
        return 8 if self.numbers in ("int8", _FLOAT8) else 4

    def nbytes(self, inputs: int) -> int:
        """Bytes of so many inputs of one output: codes, and scales and offsets of float32."""
        return inputs * self.bits // 8 + inputs // (self.group or inputs) * 4 * (1 + self.has_offsets)


class Codes(NamedTuple):
    """Numbers [n, inputs] of a `CodeType`, as int8, and of each group the scale and the offset [n, groups].

    Those of "float8" are their bits.

    offsets: None if there are none.
    """

    numbers: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]
    offsets: npt.NDArray[np.float32] | None = None


INT8_BY_OUTPUT = CodeType("int8")
FLOAT4_NUMBERS = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""By a code of "float4", its number."""


def packed_type(stored: Collection[CodeType], inputs: int) -> CodeType | None:
    """The type that matrices of all these are kept in together, number by number; None if there is none.

    inputs: number of inputs that are summed by themselves; a group is of some of them.
    """
    if {*stored} <= {INT8_BY_OUTPUT}:
        return INT8_BY_OUTPUT
    numbers = {kind.numbers for kind in stored}
    sizes = [inputs, *(kind.group for kind in stored if kind.group is not None)]
    group = next((group for group in CODE_GROUPS if not any(size % group for size in sizes)), None)
    if group is None or (_FLOAT8 in numbers and len(numbers) > 1):
        return None
    return CodeType(
        numbers.pop() if len(numbers) == 1 else "int8", group, any(kind.has_offsets for kind in stored)
    )
