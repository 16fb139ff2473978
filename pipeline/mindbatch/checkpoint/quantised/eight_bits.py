"""Matrices of eight bits a number, whole numbers or FP8, with scales: what most methods have in common."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mindbatch.checkpoint.formats.floats import Array
from mindbatch.checkpoint.quantised.layout import (
    HALVES,
    OF_ACTIVATIONS,
    GroupedMatrix,
    Needed,
    QuantisedLayout,
)
from mindbatch.checkpoint.quantised.small_floats import (
    E4M3,
    MAX_OF_E4M3,
    STORED_E4M3,
    STORED_EXPONENTS,
    from_exponents,
    refuse_nan,
)
from mindbatch.kernels.codes import CodeType


class StoredNumber(NamedTuple):
    """A type of numbers. title: in messages. dtype: as files name it."""

    title: str
    dtype: str


INT8 = StoredNumber("int8", "I8")
FP8 = StoredNumber("FP8", STORED_E4M3)

Block = tuple[int | None, int | None]
"""Outputs and inputs that have a scale together; None for all of them."""
WHOLE: Block = (None, None)
BY_OUTPUT: Block = (1, None)
_SCALES: dict[Block, str] = {WHOLE: "one scale", BY_OUTPUT: "a scale for each output"}


@dataclass(frozen=True)
class EightBits(QuantisedLayout):
    """weight [outputs, inputs], and a scale for each block of neighbouring outputs and inputs.

    marks: end of the name of the scales, which numbers are multiplied by.
    has_exponents: True if the scales are bytes that stand for powers of two.
    zeros: end of the name of numbers, one beside each scale, which are subtracted first; it may be left out.
    divisor: what each scale is divided by.
    """

    number: StoredNumber
    marks: str
    block: Block
    has_exponents: bool = False
    zeros: str | None = None
    divisor: int = 1

    main = "weight"

    @property
    def scales(self) -> str:  # type: ignore[override]
        return self.marks

    @property
    def title(self) -> str:
        rows, columns = self.block
        blocks = f"groups of {columns}" if rows == 1 else f"blocks of {rows} x {columns}"
        return f"{self.number.title}, {_SCALES.get(self.block, blocks)}"

    @property
    def group_size(self) -> int | None:  # type: ignore[override]
        return self.block[1]

    def size(self, main: tuple[int, ...]) -> tuple[int, int]:
        return main[0], main[1]

    def needed(self, outputs: int, inputs: int) -> Mapping[str, Needed]:
        rows = 1 if self.block[0] is None else -(-outputs // self.block[0])
        shape = (rows, self.groups(inputs))
        dtypes = STORED_EXPONENTS if self.has_exponents else HALVES
        needed = {
            "weight": Needed((self.number.dtype,), (outputs, inputs), is_large=True),
            self.marks: Needed(dtypes, shape, is_large=self.has_exponents),
            **OF_ACTIVATIONS,
        }
        if self.zeros is not None:
            needed[self.zeros] = Needed((*HALVES, "I8", "I32", "I64"), shape, is_optional=True)
        return needed

    def matrix(self, tensors: Mapping[str, Array], outputs: int, inputs: int) -> GroupedMatrix:
        codes, scales = tensors["weight"], tensors[self.marks]
        if self.has_exponents:
            scales = from_exponents(scales, MAX_OF_E4M3)
        if self.divisor != 1:
            scales = scales / np.float32(self.divisor)
        is_integer = self.number is INT8
        if not is_integer:
            refuse_nan(codes)
        zeros = tensors.get(str(self.zeros), np.zeros(1, np.float32)).astype(np.float32)
        return GroupedMatrix(
            (outputs, inputs),
            lambda part: codes[part],
            self._by_output(scales, outputs),
            self._by_output(zeros, outputs) if zeros.any() else 0,
            self.groups_in_order(inputs),
            unit=1 if is_integer else None,
            table=None if is_integer else E4M3,
        )

    def code_type(self, small: Mapping[str, Array], inputs: int) -> CodeType | None:
        numbers = "int8" if self.number is INT8 else "float8"
        return self.coded(numbers, small, inputs, has_offsets=bool(np.any(small.get(str(self.zeros), 0))))

    def _by_output(self, blocks: Array, outputs: int) -> Array:
        return np.repeat(blocks, self.block[0] or outputs, axis=0)[:outputs]
