"""What one step of a reshard does: the stored tensors it reads, and the tensors that it makes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mindbatch.checkpoint.boxes import Box
from mindbatch.checkpoint.file_layout import FileLayout
from mindbatch.checkpoint.reshard_plan import ReshardPlan, TensorPlan
from mindbatch.checkpoint.stored import DTYPES, Extent
from mindbatch.checkpoint.tensor_set import TensorSet

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """A stored tensor that is read. digest: what its digests.json says, if there is one."""

    path: str
    name: str
    dtype: str
    shape: Shape
    digest: str | None = None

    @property
    def rows(self) -> int:
        """How many rows it is read in; a scalar is one."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of a row: all that a place of the first dimension holds."""
        return math.prod(self.shape[1:]) * DTYPES[self.dtype]


@dataclass(frozen=True, slots=True)
class Move:
    """Elements that go from a box of one reading to a box of the tensor that is written."""

    reading: int
    source: Box
    target: Box


@dataclass(frozen=True, slots=True)
class Writing:
    """A tensor that is written: at `extents` of `file`, a path below the target folder.

    What no move covers is zero.
    """

    file: str
    name: str
    dtype: str
    shape: Shape
    extents: tuple[Extent, ...]
    moves: tuple[Move, ...]

    @property
    def rows(self) -> int:
        """How many rows it is written in; a scalar is one."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape[1:]) * DTYPES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class Job:
    """All tensors of one name, made in one go so that each source is read once.

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


def jobs_of(
    plan: ReshardPlan,
    sources: Sequence[TensorSet],
    layouts: Mapping[str, FileLayout],
    file_of: Sequence[str],
    dtypes: Mapping[str, str],
    *,
    allow_overflow: bool = False,
) -> list[Job]:
    """The jobs of a plan, one a name.

    layouts: of the target files, by path below the target folder; file_of: that path, by target rank.
    dtypes: of the target's tensors, by name.
    """
    by_name: dict[str, list[TensorPlan]] = {}
    for tensor in plan.tensors:
        by_name.setdefault(tensor.name, []).append(tensor)
    return [
        Job(
            name,
            *_read_and_written(name, tensors, sources, layouts, file_of, dtypes[name]),
            allow_overflow=allow_overflow,
        )
        for name, tensors in by_name.items()
    ]


def _read_and_written(
    name: str,
    tensors: Sequence[TensorPlan],
    sources: Sequence[TensorSet],
    layouts: Mapping[str, FileLayout],
    file_of: Sequence[str],
    dtype: str,
) -> tuple[tuple[Reading, ...], tuple[Writing, ...]]:
    ranks = sorted({copy.source_rank for tensor in tensors for copy in tensor.copies})
    place = {rank: index for index, rank in enumerate(ranks)}
    writings = tuple(
        Writing(
            file_of[tensor.rank],
            name,
            dtype,
            tensor.shape,
            layouts[file_of[tensor.rank]].extents[name],
            tuple(
                Move(place[copy.source_rank], _rows(copy.source), _rows(copy.target))
                for copy in tensor.copies
            ),
        )
        for tensor in tensors
    )
    return tuple(_reading(sources[rank], name) for rank in ranks), writings


def _reading(source: TensorSet, name: str) -> Reading:
    info = source.info(name)
    return Reading(str(source.file(name).path), name, info.dtype, info.shape, source.digest(name))


def _rows(box: Box) -> Box:
    """A scalar is one row of one element."""
    return box or ((0, 1),)
