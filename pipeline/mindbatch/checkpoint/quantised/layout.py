"""Interface of a storage layout of quantised matrices: the tensors that make one."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from mindbatch.checkpoint.formats.floats import Array
from mindbatch.checkpoint.quantised.matrix import GroupedMatrix

HALVES = ("F16", "BF16", "F32")  # dtypes of scales
MAX_SHOWN = 4


class Needed(NamedTuple):
    """Requirements of a matrix's tensor. is_large: it grows as the matrix does, and is read when that is."""

    dtypes: tuple[str, ...]
    shape: tuple[int, ...]
    is_large: bool = False
    is_optional: bool = False


class QuantisedLayout(ABC):
    """Storage layout of a folder's matrices. Tensors are identified by the ends of their names.

    main: the end of the tensor whose shape tells the matrix's size.
    marks: the end of that which tells that a matrix is quantised.
    separator: what is before each end. weight: what is in place of both in the matrix's own name.
    dimensions: those of the main tensor, in words.
    is_stacked: the first one counts matrices, whose transposes the model has in one tensor.
    """

    main: str
    marks: str
    separator, weight = ".", ".weight"
    dimensions: tuple[str, ...] = ("rows", "columns")
    is_stacked = False

    @property
    @abstractmethod
    def title(self) -> str:
        """Name of the method, for messages."""

    @abstractmethod
    def size(self, main: tuple[int, ...]) -> tuple[int, int]:
        """(outputs, inputs) of a matrix whose main tensor has this shape."""

    @abstractmethod
    def needed(self, outputs: int, inputs: int) -> Mapping[str, Needed]:
        """Tensors that a matrix of this size needs, by the ends of their names."""

    def size_fault(self, outputs: int, inputs: int) -> str | None:
        """Explains why no matrix of this size can be stored so; None if it can."""
        return None

    def value_faults(self, small: Mapping[str, Array], outputs: int, inputs: int) -> Iterator[str]:
        """Checks the values of the tensors that are not large."""
        for end, values in small.items():
            if end.endswith(("scale", "scales")):
                yield from _scale_faults(end, values)

    @abstractmethod
    def matrix(self, tensors: Mapping[str, Array], outputs: int, inputs: int) -> GroupedMatrix:
        """The matrix of its tensors: floats as float32, integers as NumPy has them.

        CheckpointError for values of large tensors that are not as they must be.
        """


def _scale_faults(end: str, values: Array) -> Iterator[str]:
    bad = ~((values > 0) & (values < np.inf))
    if count := int(np.count_nonzero(bad)):
        first = values[bad].reshape(-1)[:MAX_SHOWN]
        shown = ", ".join(f"{value:g}" for value in first)
        yield f"{end}: {count} of {values.size} scales are not above 0 and finite: {shown}" + (
            " ..." if count > len(first) else ""
        )


def group_faults(end: str, values: Array, groups: int) -> Iterator[str]:
    bad = (values < 0) | (values >= groups)
    if bad.any():
        yield (
            f"{end}: {int(np.count_nonzero(bad))} of {values.size} inputs are in groups that are not there, "
            f"such as {int(values[bad][0])}; allowed: 0..{groups - 1}"
        )
