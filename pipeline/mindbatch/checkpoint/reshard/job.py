"""The jobs of a reshard: which stored tensors each reads, what it makes of them, and in which portions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mindbatch.checkpoint.folders.tensor_set import TensorSet
from mindbatch.checkpoint.formats.stored import DTYPES, ByteExtent, FileLayout
from mindbatch.checkpoint.placement.plan import Copy, TensorPlan
from mindbatch.checkpoint.placement.regions import RankFiles, Shape, StoredShard

if TYPE_CHECKING:  # adapters are seldom merged
    from mindbatch.checkpoint.lora.merge import Edit
    from mindbatch.checkpoint.lora.plan import LoraPlan

CHUNK_BYTES = 1 << 22
"""About how much of sources and targets is in memory at once; more where a single row is larger."""

SourceTensor = tuple[int, str]
"""Rank and name of a stored tensor of the source."""


class _InRows:
    """A tensor that is read or written in rows. view: shape by which its regions and rows are counted."""

    __slots__ = ()

    dtype: str
    view: Shape

    @property
    def rows(self) -> int:
        """Number of rows; a scalar has one."""
        return self.view[0] if self.view else 1

    @property
    def row_bytes(self) -> int:
        """Stored bytes of a row: everything with one index of the first dimension."""
        return math.prod(self.view[1:]) * DTYPES[self.dtype]


@dataclass(frozen=True, slots=True)
class Reading(_InRows):
    """A stored tensor that is read.

    digest: digest of digests.json, if there is one.
    edits: changes by an adapter, with which its rows are read, merged and in float32.
    """

    path: str
    name: str
    dtype: str
    shape: Shape
    view: Shape
    digest: str | None = None
    edits: tuple[Edit, ...] = ()

    @property
    def values_dtype(self) -> str:
        return "F32" if self.edits else self.dtype

    @property
    def values_row_bytes(self) -> int:
        return math.prod(self.view[1:]) * DTYPES[self.values_dtype]


@dataclass(frozen=True, slots=True)
class Writing(_InRows):
    """A tensor that is written: at `extents` of `file`, a path below the target folder.

    What no copy covers is zero.
    """

    file: str
    name: str
    dtype: str
    shape: Shape
    view: Shape
    extents: tuple[ByteExtent, ...]
    copies: tuple[Copy, ...]

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class Job:
    """Tensors that are made of the same sources, in one go so that each source is read once.

    name: name of the first tensor.
    readings: stored tensors that are read, by the rank and name that the copies have.
    allow_overflow: True if finite values may become infinite where the dtype changes.
    overflow_hint: end of the message where they may not.
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

    sets: opened tensors of each source rank.
    layouts: layouts of the target files, by path below the target folder.
    file_of: path below the target folder, by target rank.
    dtypes: dtypes of the target's tensors, by name.
    lora: adapter that is merged.
    allow_overflow, overflow_hint: see Job.
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
                plan.view,
                layouts[file_of[plan.rank]].extents[plan.name],
                plan.copies,
            )
            for plan in together
        )
        jobs.append(Job(together[0].name, readings, writings, allow_overflow, overflow_hint))
    return jobs


def reading_of(tensors: TensorSet, name: str, stored: StoredShard, lora: LoraPlan | None = None) -> Reading:
    edits = lora.edits(stored) if lora else ()
    info, digest = tensors.info(name), tensors.digest(name)
    path = str(tensors.file(name).path)
    return Reading(path, name, info.dtype, info.shape, stored.shard.view, digest, edits)


def _together(plans: Iterable[TensorPlan]) -> list[list[TensorPlan]]:
    """Groups the plans of one name, and those of names that are made of the same tensors."""
    by_name: dict[str, list[TensorPlan]] = {}
    for plan in plans:
        by_name.setdefault(plan.name, []).append(plan)
    groups: dict[str, list[TensorPlan]] = {}  # by the names of their sources; the same list for all of them
    groups_in_order: list[list[TensorPlan]] = []
    for same in by_name.values():
        sources = {copy.source_name for plan in same for copy in plan.copies}
        joined: list[TensorPlan] = []
        for group in {id(groups[name]): groups[name] for name in sources if name in groups}.values():
            joined += group
            group.clear()
        joined += same
        groups_in_order.append(joined)
        groups |= {copy.source_name: joined for plan in joined for copy in plan.copies}
    return [group for group in groups_in_order if group]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Rows of a reading: the rows of the targets, moved by `offset`."""

    reading: SourceTensor
    offset: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """The rows start..stop of some writings. fetches: full rows that are read for them.

    Transposed copies have no fetch: a row of theirs is a column of the source.
    """

    start: int
    stop: int
    writings: tuple[Writing, ...]
    fetches: tuple[Fetch, ...]

    def copies(self, writing: Writing) -> list[tuple[Fetch | None, Copy]]:
        """The copies that fill the chunk's rows of a writing, each with the fetch that has its rows."""
        return [(fetch_of(copy), copy) for copy in writing.copies if _is_over(copy, self.start, self.stop)]


def fetch_of(copy: Copy) -> Fetch | None:
    """Finds the source tensor and row offset of a copy; None for a transposed one."""
    return None if copy.transposed else Fetch(copy.source_tensor, copy.source_rows[0] - copy.target_rows[0])


def chunks_of(job: Job, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Yields the rows of all writings once and in order, and those of the sources in order if possible."""
    for group in _groups(job.writings):
        # Cut where a copy begins or ends, so that a chunk's rows all have the same sources.
        bounds = {0, group[0].rows} | {
            bound for writing in group for copy in writing.copies for bound in copy.target_rows
        }
        ordered = sorted(bounds)
        for start, stop in zip(ordered, ordered[1:], strict=False):
            yield from _portions(job, tuple(group), start, stop, chunk_bytes)


def _groups(writings: Sequence[Writing]) -> list[list[Writing]]:
    """Groups the writings of the same rows that are made from the same rows of their sources."""
    by_rows: dict[object, list[Writing]] = {}
    for writing in writings:
        rows = frozenset(
            (copy.transposed, copy.source[1] if copy.transposed else copy.source_rows, copy.target_rows)
            for copy in writing.copies
        )
        by_rows.setdefault((writing.rows, rows), []).append(writing)
    return sorted(by_rows.values(), key=lambda group: min(map(_first_source_row, group)))


def _first_source_row(writing: Writing) -> tuple[SourceTensor, int]:
    return min(((copy.source_tensor, copy.source_rows[0]) for copy in writing.copies), default=((0, ""), 0))


def _portions(
    job: Job, group: tuple[Writing, ...], start: int, stop: int, chunk_bytes: int
) -> Iterator[Chunk]:
    copies = [copy for writing in group for copy in writing.copies if _is_over(copy, start, stop)]
    fetches = tuple(dict.fromkeys(fetch for fetch in map(fetch_of, copies) if fetch is not None))
    width = sum(job.readings[fetch.reading].values_row_bytes for fetch in fetches)
    width += sum(writing.row_bytes for writing in group)
    step = max(1, chunk_bytes // max(1, width))
    for first in range(start, stop, step):
        yield Chunk(first, min(first + step, stop), group, fetches)


def _is_over(copy: Copy, start: int, stop: int) -> bool:
    low, high = copy.target_rows
    return low < stop and start < high
