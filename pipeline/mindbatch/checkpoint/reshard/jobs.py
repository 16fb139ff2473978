"""From a plan in the names of the files to the jobs that carry it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mindbatch.checkpoint.folders.tensor_set import TensorSet
from mindbatch.checkpoint.formats.file_layout import FileLayout
from mindbatch.checkpoint.names.stored_plan import StoredPlan
from mindbatch.checkpoint.placement.regions import Region, Shape
from mindbatch.checkpoint.reshard.job import Job, Move, Reading, Writing

Views = Sequence[Mapping[str, Shape]]
"""For each source rank, the shapes by which boxes of some of its tensors are counted."""


def jobs_of(
    plans: Iterable[StoredPlan],
    sources: Sequence[TensorSet],
    layouts: Mapping[str, FileLayout],
    file_of: Sequence[str],
    dtypes: Mapping[str, str],
    *,
    views: Views = (),
    allow_overflow: bool = False,
) -> list[Job]:
    """The jobs of a plan: tensors that have a source in common are made together.

    layouts: of the target files, by path below the target folder; file_of: that path, by target rank.
    dtypes: of the target's tensors, by name. views: of the sources' tensors, none by default.
    """
    return [
        Job(
            together[0].name,
            *_read_and_written(together, sources, layouts, file_of, dtypes, views),
            allow_overflow=allow_overflow,
        )
        for together in _together(plans)
    ]


def _together(plans: Iterable[StoredPlan]) -> list[list[StoredPlan]]:
    """The plans, those of one name together, and those of names that are made of the same tensors."""
    by_name: dict[str, list[StoredPlan]] = {}
    for plan in plans:
        by_name.setdefault(plan.name, []).append(plan)
    groups: dict[str, list[StoredPlan]] = {}  # by the names of their sources; the same list for all of them
    found: list[list[StoredPlan]] = []
    for same in by_name.values():
        origins = {copy.source_name for plan in same for copy in plan.copies}
        joined: list[StoredPlan] = []
        for group in {id(groups[name]): groups[name] for name in origins if name in groups}.values():
            joined += group
            group.clear()
        joined += same
        found.append(joined)
        groups |= {copy.source_name: joined for plan in joined for copy in plan.copies}
    return [group for group in found if group]


def _read_and_written(
    plans: Sequence[StoredPlan],
    sources: Sequence[TensorSet],
    layouts: Mapping[str, FileLayout],
    file_of: Sequence[str],
    dtypes: Mapping[str, str],
    views: Views,
) -> tuple[tuple[Reading, ...], tuple[Writing, ...]]:
    read = sorted({(copy.source_rank, copy.source_name) for plan in plans for copy in plan.copies})
    number = {place: index for index, place in enumerate(read)}
    writings = tuple(
        Writing(
            file_of[plan.rank],
            plan.name,
            dtypes[plan.name],
            plan.shape,
            layouts[file_of[plan.rank]].extents[plan.name],
            tuple(
                Move(
                    number[copy.source_rank, copy.source_name],
                    _rows(copy.source),
                    _rows(copy.target),
                    copy.transposed,
                )
                for copy in plan.copies
            ),
            None if plan.view == plan.shape else plan.view,
        )
        for plan in plans
    )
    readings = (
        reading_of(sources[rank], name, views[rank].get(name) if views else None) for rank, name in read
    )
    return tuple(readings), writings


def reading_of(source: TensorSet, name: str, view: Shape | None) -> Reading:
    """How a tensor of a source is read."""
    info = source.info(name)
    return Reading(str(source.file(name).path), name, info.dtype, info.shape, source.digest(name), view)


def _rows(box: Region) -> Region:
    """A scalar is one row of one element."""
    return box or ((0, 1),)
