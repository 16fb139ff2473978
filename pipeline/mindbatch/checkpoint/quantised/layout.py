"""Interface of a storage layout of quantised matrices, and the matrix of integers that its tensors make."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mindbatch.checkpoint.formats.floats import Array, FloatArray
from mindbatch.kernels.codes import Codes, CodeType

WORD_BITS = 32


def unpacked(words: Array, bits: int) -> Array:
    """Words [..., n] of 4 or 8 bits each number -> uint8 [..., n * 32 / bits]."""
    numbers = np.ascontiguousarray(words).astype("<u4", copy=False).view(np.uint8)
    if bits == 8:
        return numbers
    halves = np.empty((*numbers.shape, 2), np.uint8)
    np.bitwise_and(numbers, 15, out=halves[..., 0])
    np.right_shift(numbers, 4, out=halves[..., 1])
    return halves.reshape(*numbers.shape[:-1], -1)


ROWS_AT_ONCE = 64  # bounds what is computed on the way to a few hundred KiB


@dataclass(frozen=True)
class GroupedMatrix:
    """[outputs, inputs]: (code - zero) * scale in float32, exact for scales in half precision.

    codes: function that unpacks the codes of some outputs, [n, inputs].
    scales: [outputs, groups].
    zeros: [outputs, groups], or one number for all.
    groups: [inputs], the group of each input; None if groups of equal size follow one another.
    unit: what codes are whole multiples of; None if they are of none.
    table: the numbers that codes stand for; None for their own.
    middle: what is taken from codes that `zeros` are given for, so that they have a sign.
    """

    shape: tuple[int, int]
    codes: Callable[[slice], Array]
    scales: FloatArray
    zeros: FloatArray | int
    groups: Array | None = None
    unit: float | None = 1
    table: FloatArray | None = None
    middle: int = 0

    def floats(self, rows: slice, columns: slice) -> FloatArray:
        """Some outputs and inputs, given by bounds inside the matrix."""
        inputs = range(self.shape[1])[columns]
        weights = np.empty((rows.stop - rows.start, len(inputs)), np.float32)
        for first in range(rows.start, rows.stop, ROWS_AT_ONCE):
            part = slice(first, min(first + ROWS_AT_ONCE, rows.stop))
            weights[first - rows.start : part.stop - rows.start] = self._floats(part)[:, columns]
        return weights

    def _floats(self, rows: slice) -> FloatArray:
        stored, scales = self.codes(rows), self.scales[rows]
        codes = stored.astype(np.float32) if self.table is None else np.take(self.table, stored)
        zeros = self.zeros if isinstance(self.zeros, int) else self.zeros[rows]
        if self.groups is not None:
            codes -= zeros if isinstance(zeros, int) else np.take(zeros, self.groups, axis=1)
            codes *= np.take(scales, self.groups, axis=1)
            return codes
        grouped = codes.reshape(len(codes), scales.shape[1], -1)
        grouped -= zeros if isinstance(zeros, int) else zeros[:, :, None]
        grouped *= scales[:, :, None]
        return codes

    def codes_of(self, rows: slice, columns: slice, kind: CodeType) -> Codes:
        """Some outputs and inputs, given by bounds inside the matrix, as numbers of a type that has them.

        A zero of each group becomes what its middle number lacks to it: exact where floats of scales are
        halves.
        """
        numbers = self.codes(rows)[:, columns]
        unit = self.unit or 1
        if unit != 1:
            numbers = numbers / np.float32(unit)
        if kind.group is None:
            group_of = np.zeros(1, np.intp)
        elif self.groups is None:
            group_of = (
                np.arange(columns.start, columns.stop, kind.group) * self.scales.shape[1] // self.shape[1]
            )
        else:
            group_of = self.groups[columns.start : columns.stop : kind.group]
        scales = np.take(self.scales[rows], group_of, axis=1) * np.float32(unit)
        if self.table is not None:
            return Codes(numbers.view(np.int8), scales)
        middle = self.zeros if isinstance(self.zeros, int) else self.middle
        offsets = None
        if kind.has_offsets:
            zeros = middle if isinstance(self.zeros, int) else np.take(self.zeros[rows], group_of, axis=1)
            offsets = (middle - zeros) * scales
        return Codes((numbers.astype(np.int16) - middle).astype(np.int8), scales, offsets)


HALVES = ("F16", "BF16", "F32")  # dtypes of scales
MAX_SHOWN = 4


class Needed(NamedTuple):
    """Requirements of a matrix's tensor.

    shape: dimensions of 1 may be missing, or be stored besides, where the tensor is not large; None allows
        any.
    is_large: True if it is about as large as the matrix, and read with it.
    of_activations: True if it says how activations are rounded, which are not rounded here.
    is_own: True if it is one of the model's tensors besides.
    """

    dtypes: tuple[str, ...]
    shape: tuple[int, ...] | None
    is_large: bool = False
    is_optional: bool = False
    of_activations: bool = False
    is_own: bool = False


OF_ACTIVATIONS = dict.fromkeys(
    ("input_scale", "input_global_scale", "activation_scale"),
    Needed(HALVES, (1,), is_optional=True, of_activations=True),
)
"""The requirements of scales, one for all activations, that a matrix may have."""


class QuantisedLayout(ABC):
    """Storage layout of a folder's matrices. Tensors are identified by the ends of their names.

    main: end of the name of the tensor whose shape gives the matrix's size.
    marks: end of the name of the tensor that marks a matrix as quantised.
    scales: end of the name of the scales.
    order: end of the name of the inputs' groups, if these are in an order of their own.
    separator: text before each end.
    weight: text that replaces separator and end in the matrix's own name.
    dimensions: dimensions of the main tensor, in words.
    is_stacked: True if the first dimension counts matrices, whose transposes are one tensor of the model.
    bits: bits of a code.
    group_size: number of inputs that have a scale together; None for all.
    """

    main: str
    marks: str
    scales, order = "scales", "g_idx"
    separator, weight = ".", ".weight"
    dimensions: tuple[str, ...] = ("rows", "columns")
    is_stacked = False
    bits: int
    group_size: int | None

    @property
    @abstractmethod
    def title(self) -> str:
        """Name of the method, for messages."""

    @property
    def grouped(self) -> str:
        """Describes the group size in messages."""
        return "" if self.group_size is None else f", groups of {self.group_size}"

    @property
    def in_word(self) -> int:
        """Numbers in a word of 32 bits."""
        return WORD_BITS // self.bits

    def groups(self, inputs: int) -> int:
        """Number of groups of a row."""
        return 1 if self.group_size is None else -(-inputs // self.group_size)

    def coded(
        self, numbers: str, small: Mapping[str, Array], inputs: int, *, has_offsets: bool = False
    ) -> CodeType | None:
        """The type of these numbers, whose groups are in order; None if `order` is another one."""
        in_order = np.arange(inputs) // (self.group_size or inputs)
        if not np.array_equal(small.get(self.order, in_order), in_order):
            return None
        return CodeType(numbers, self.group_size, has_offsets)

    def coded_with_zeros(
        self, bits: int, zeros: Array, small: Mapping[str, Array], inputs: int
    ) -> CodeType | None:
        """The type of integers without a sign; they have offsets unless each zero is their middle."""
        has_offsets = bool(np.any(zeros != 1 << (bits - 1)))
        return self.coded(f"int{bits}", small, inputs, has_offsets=has_offsets)

    def groups_in_order(self, inputs: int) -> Array | None:
        """Computes `GroupedMatrix.groups` for groups of neighbours, of which the last may be smaller."""
        if self.group_size is None or inputs % self.group_size == 0:
            return None
        return np.arange(inputs) // self.group_size

    @abstractmethod
    def size(self, main: tuple[int, ...]) -> tuple[int, int]:
        """(outputs, inputs) of a matrix whose main tensor has this shape."""

    @abstractmethod
    def needed(self, outputs: int, inputs: int) -> Mapping[str, Needed]:
        """Tensors that a matrix of this size needs, by the ends of their names."""

    def size_error(self, outputs: int, inputs: int) -> str | None:
        """Explains why no matrix of this size can be stored so; None if it can."""
        return None

    def value_errors(self, small: Mapping[str, Array], outputs: int, inputs: int) -> Iterator[str]:
        """Checks the values of the tensors that are not large."""
        needed = self.needed(outputs, inputs)
        for end, values in small.items():
            if end == self.scales or needed[end].of_activations:
                yield from scale_errors(end, values)
        if self.order in small:
            yield from _group_errors(self.order, small[self.order], self.groups(inputs))

    def code_type(self, small: Mapping[str, Array], inputs: int) -> CodeType | None:
        """The type of the numbers of a matrix of so many inputs; None if they are no whole numbers.

        small: the tensors that are not large.
        """
        return None

    @abstractmethod
    def matrix(self, tensors: Mapping[str, Array], outputs: int, inputs: int) -> GroupedMatrix:
        """The matrix of its tensors: floats as float32, integers as NumPy has them.

        CheckpointError for values of large tensors that are not as they must be.
        """


def scale_errors(end: str, values: Array, is_zero_allowed: bool = False) -> Iterator[str]:
    is_good = (values >= 0 if is_zero_allowed else values > 0) & (values < np.inf)
    bad = values[~is_good]
    if bad.size:
        shown = ", ".join(f"{value:g}" for value in bad[:MAX_SHOWN])
        more = " ..." if bad.size > MAX_SHOWN else ""
        allowed = "0 or more" if is_zero_allowed else "above 0"
        yield f"{end}: {bad.size} of {values.size} scales are not {allowed} and finite: {shown}{more}"


def _group_errors(end: str, values: Array, groups: int) -> Iterator[str]:
    bad = values[(values < 0) | (values >= groups)]
    if bad.size:
        yield (
            f"{end}: {bad.size} of {values.size} inputs are in groups that do not exist, such as "
            f"{int(bad[0])}; allowed: 0..{groups - 1}"
        )
