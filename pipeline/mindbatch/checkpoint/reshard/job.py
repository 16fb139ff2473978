"""The jobs of a reshard: each says which stored tensors it reads, and which tensors it makes of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mindbatch.checkpoint.folders.tensor_set import TensorSet
from mindbatch.checkpoint.formats.stored import DTYPES, ByteExtent, FileLayout
from mindbatch.checkpoint.placement.plan import Copy, TensorPlan
from mindbatch.checkpoint.placement.rank_files import RankFiles, StoredShard
from mindbatch.checkpoint.placement.regions import Shape

if TYPE_CHECKING:  # adapters are seldom merged
    from mindbatch.checkpoint.lora.merge import Edit
    from mindbatch.checkpoint.lora.plan import LoraPlan

SourceTensor = tuple[int, str]
"""Rank and name of a stored tensor of the source."""


class _InRows:
    """A tensor that is read or written in rows.

    view: the shape by which its regions and rows are counted, where that is another one of the same bytes.
    """

    __slots__ = ()

    dtype: str
    shape: Shape
    view: Shape | None

    @property
    def counted(self) -> Shape:
        """The shape by which its regions and rows are counted."""
        return self.shape if self.view is None else self.view

    @property
    def rows(self) -> int:
        """Number of rows; a scalar has one."""
        return self.counted[0] if self.counted else 1

    @property
    def row_bytes(self) -> int:
        """Stored bytes of a row: all that a place of the first dimension holds."""
        return math.prod(self.counted[1:]) * DTYPES[self.dtype]


@dataclass(frozen=True, slots=True)
class Reading(_InRows):
    """A stored tensor that is read. digest: what its digests.json says, if there is one.

    edits: what an adapter does to it, so that its rows are read as merged float32 ones.
    """

    path: str
    name: str
    dtype: str
    shape: Shape
    digest: str | None = None
    view: Shape | None = None
    edits: tuple[Edit, ...] = ()

    @property
    def values_dtype(self) -> str:
        """The dtype of the rows that reading it gives."""
        return "F32" if self.edits else self.dtype

    @property
    def values_row_bytes(self) -> int:
        """Bytes of a row as reading it gives it."""
        return math.prod(self.counted[1:]) * DTYPES[self.values_dtype]


@dataclass(frozen=True, slots=True)
class Writing(_InRows):
    """A tensor that is written: at `extents` of `file`, a path below the target folder.

    What no copy covers is zero.
    """

    file: str
    name: str
    dtype: str
    shape: Shape
    extents: tuple[ByteExtent, ...]
    copies: tuple[Copy, ...]
    view: Shape | None = None

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class Job:
    """Tensors that are made of the same sources, in one go so that each source is read once.

    name: the first of theirs. readings: by the rank and name that the copies have.
    allow_overflow: finite values may become infinite where the dtype changes. overflow_hint: how the message
    ends where they may not.
    """

    name: str
    readings: Mapping[SourceTensor, Reading]
    writings: tuple[Writing, ...]
    allow_overflow: bool = False
    overflow_hint: str = ""

    @property
    def nbytes(self) -> int:
        return sum(writing.nbytes for writing in self.writings)


def jobs_of(
    plans: Iterable[TensorPlan],
    source: RankFiles,
    sets: Sequence[TensorSet],
    layouts: Mapping[str, FileLayout],
    file_of: Sequence[str],
    dtypes: Mapping[str, str],
    *,
    lora: LoraPlan | None = None,
    allow_overflow: bool = False,
    overflow_hint: str = "",
) -> list[Job]:
    """The jobs of a plan: tensors that have a source in common are made together.

    sets: the opened tensors of each source rank. layouts: of the target files, by path below the target
    folder; file_of: that path, by target rank. dtypes: of the target's tensors, by name. lora: an adapter
    that is merged. allow_overflow, overflow_hint: as in Job.
    """
    jobs: list[Job] = []
    for together in _together(plans):
        read = sorted({copy.source_tensor for plan in together for copy in plan.copies})
        readings = {
            (rank, name): reading_of(sets[rank], name, source.ranks[rank][name], lora) for rank, name in read
        }
        writings = tuple(
            Writing(
                file_of[plan.rank],
                plan.name,
                dtypes[plan.name],
                plan.shape,
                layouts[file_of[plan.rank]].extents[plan.name],
                plan.copies,
                None if plan.view == plan.shape else plan.view,
            )
            for plan in together
        )
        jobs.append(Job(together[0].name, readings, writings, allow_overflow, overflow_hint))
    return jobs


def reading_of(tensors: TensorSet, name: str, stored: StoredShard, lora: LoraPlan | None = None) -> Reading:
    edits = lora.edits(stored) if lora else ()
    info, digest = tensors.info(name), tensors.digest(name)
    path, view = str(tensors.file(name).path), stored.shard.other_view
    return Reading(path, name, info.dtype, info.shape, digest, view, edits)


def _together(plans: Iterable[TensorPlan]) -> list[list[TensorPlan]]:
    """The plans, those of one name together, and those of names that are made of the same tensors."""
    by_name: dict[str, list[TensorPlan]] = {}
    for plan in plans:
        by_name.setdefault(plan.name, []).append(plan)
    groups: dict[str, list[TensorPlan]] = {}  # by the names of their sources; the same list for all of them
    groups_in_order: list[list[TensorPlan]] = []
    for same in by_name.values():
        origins = {copy.source_name for plan in same for copy in plan.copies}
        joined: list[TensorPlan] = []
        for group in {id(groups[name]): groups[name] for name in origins if name in groups}.values():
            joined += group
            group.clear()
        joined += same
        groups_in_order.append(joined)
        groups |= {copy.source_name: joined for plan in joined for copy in plan.copies}
    return [group for group in groups_in_order if group]
