"""What one step of a reshard does: the stored tensors it reads, and the tensors that it makes of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mindbatch.checkpoint.formats.stored import DTYPES, Extent
from mindbatch.checkpoint.lora.addition import Addition
from mindbatch.checkpoint.placement.regions import Region

Shape = tuple[int, ...]


class _InRows:
    """A tensor that is read or written in rows.

    view: the shape by which its boxes and rows are counted, where that is another one of the same bytes.
    """

    __slots__ = ()

    dtype: str
    shape: Shape
    view: Shape | None

    @property
    def counted(self) -> Shape:
        """The shape by which its boxes and rows are counted."""
        return self.shape if self.view is None else self.view

    @property
    def rows(self) -> int:
        """How many rows it has; a scalar is one."""
        return self.counted[0] if self.counted else 1

    @property
    def row_bytes(self) -> int:
        """Stored bytes of a row: all that a place of the first dimension holds."""
        return math.prod(self.counted[1:]) * DTYPES[self.dtype]


@dataclass(frozen=True, slots=True)
class Reading(_InRows):
    """A stored tensor that is read. digest: what its digests.json says, if there is one.

    additions: what an adapter adds, so that its rows are read as merged float32 ones.
    """

    path: str
    name: str
    dtype: str
    shape: Shape
    digest: str | None = None
    view: Shape | None = None
    additions: tuple[Addition, ...] = ()

    @property
    def values_dtype(self) -> str:
        """The dtype of the rows that reading it gives."""
        return "F32" if self.additions else self.dtype

    @property
    def values_row_bytes(self) -> int:
        """Bytes of a row as reading it gives it."""
        return math.prod(self.counted[1:]) * DTYPES[self.values_dtype]


@dataclass(frozen=True, slots=True)
class Move:
    """Elements that go from a box of one reading to a box of the tensor that is written, each in its view.

    transposed: they are put there transposed, so the target box has the source's sizes the other way round.
    """

    reading: int
    source: Region
    target: Region
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Writing(_InRows):
    """A tensor that is written: at `extents` of `file`, a path below the target folder.

    What no move covers is zero.
    """

    file: str
    name: str
    dtype: str
    shape: Shape
    extents: tuple[Extent, ...]
    moves: tuple[Move, ...]
    view: Shape | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class Job:
    """Tensors that are made of the same sources, in one go so that each source is read once.

    name: the first of theirs.
    allow_overflow: finite values may become infinite where the dtype changes.
    """

    name: str
    readings: tuple[Reading, ...]
    writings: tuple[Writing, ...]
    allow_overflow: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes that are written."""
        return sum(writing.nbytes for writing in self.writings)
