"""Proves a reshard plan: each element of every target tensor is written once, from its own place.

The proof looks at the copies alone, whatever way they were found. Where each of their elements is from, and
where it goes, is worked out in coordinates of the full tensors from what the files of both sides hold, by
regions and exact counts, so that the cost does not depend on the sizes of the tensors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.placement.plan import Copy, TensorPlan
from mindbatch.checkpoint.placement.rank_files import RankFiles, StoredSegment, StoredShard
from mindbatch.checkpoint.placement.regions import (
    Region,
    Shape,
    first_overlap,
    full_region,
    intersection,
    is_inside,
    moved,
    oriented,
    region_shape,
    rows_of,
    shown_region,
    uncovered,
    volume,
)


def prove(plans: Sequence[TensorPlan], source: RankFiles, target: RankFiles) -> None:
    """Shows that the plan makes every tensor of every target rank, each element once and the right one.

    Also shown: the files of both sides can be as they are said to be, and together hold all elements.

    Raises:
        CheckpointError: the first faults, each with the tensor, the rank and the region.
    """
    raise_if_any([*_side_faults("source", source), *_side_faults("target", target)])
    numbers: dict[object, int] = {}
    sources = [{name: _Held(stored, numbers) for name, stored in tensors.items()} for tensors in source.ranks]
    right: set[object] = set()
    needed = {(name, rank) for rank, tensors in enumerate(target.ranks) for name in tensors}
    faults: list[str] = []
    for plan in plans:
        where = f"tensor {shown(plan.name)}: target rank {plan.rank}"
        if (plan.name, plan.rank) not in needed:
            faults.append(f"{where}: not wanted, or planned twice")
            continue
        needed.remove((plan.name, plan.rank))
        wanted = _Held(target.ranks[plan.rank][plan.name], numbers)
        key = _key(plan, wanted, sources)
        if key in right:
            continue
        found = [f"{where}: {line}" for line in _plan_faults(plan, wanted, sources)]
        faults += found
        if not found:
            right.add(key)
    missing = (f"tensor {shown(name)}: not made for target rank {rank}" for name, rank in sorted(needed))
    raise_if_any([*faults, *missing])


def _side_faults(side: str, files: RankFiles) -> Iterator[str]:
    """Stored tensors that their segments do not fill, and elements that no rank holds."""
    held: dict[str, set[Region]] = {name: set() for name in files.shapes}
    is_sound, right = True, set[object]()
    for rank, tensors in enumerate(files.ranks):
        for name, stored in tensors.items():
            key = (stored.geometry, tuple(files.shapes.get(tensor) for tensor in stored.tensors))
            if key not in right:
                faults = _stored_faults(stored, files)
                is_sound = is_sound and not faults
                yield from (f"tensor {shown(name)}: {side}: rank {rank}: {line}" for line in faults)
                right |= set() if faults else {key}
            for segment in stored.segments:
                held.setdefault(segment.tensor, set()).add(segment.whole)
    for name, shape in files.shapes.items() if is_sound else ():
        for region in uncovered(full_region(shape), sorted(held[name])):
            yield f"tensor {shown(name)}: {side}: {shown_region(region)} of shape {[*shape]} is on no rank"


def _stored_faults(stored: StoredShard, files: RankFiles) -> list[str]:
    faults: list[str] = []
    for segment in stored.segments:
        where, shape = shown_region(segment.whole), files.shapes.get(segment.tensor)
        if shape is None:
            faults.append(f"holds a part of {shown(segment.tensor)}, which there is not")
        elif not is_inside(segment.whole, full_region(shape)):
            faults.append(f"{where} is outside the full shape {[*shape]}")
        if region_shape(oriented(segment.stored, segment.transposed)) != region_shape(segment.whole):
            faults.append(f"{shown_region(segment.stored)} cannot hold {where}, which has other sizes")
    regions = [*(segment.stored for segment in stored.segments), *stored.padding]
    return faults or [*_tiling_faults(stored.view, regions, "filled")]


def _tiling_faults(shape: Shape, regions: Sequence[Region], done: str) -> Iterator[str]:
    """Whether the regions are all of a tensor, each element once."""
    whole = full_region(shape)
    for region in regions:
        if not is_inside(region, whole):
            yield f"{shown_region(region)} is outside its shape {[*shape]}"
            return
    if (twice := first_overlap(regions)) is not None:
        yield f"{shown_region(twice)} of its shape {[*shape]} is {done} twice"
    elif sum(map(volume, regions)) != volume(whole):
        yield f"{shown_region(uncovered(whole, regions)[0])} of its shape {[*shape]} is {done} by nothing"


class _Held:
    """The segments of a stored tensor, found by their rows. numbers: of the geometries that were met."""

    def __init__(self, stored: StoredShard, numbers: dict[object, int]) -> None:
        self.shape, self.view, self.padding = stored.shape, stored.view, stored.padding
        self.tensors = stored.tensors
        self.geometry = numbers.setdefault(stored.geometry, len(numbers))
        self._segments = sorted(stored.segments)
        rows = [rows_of(segment.stored) for segment in self._segments]
        self._starts = [start for start, _ in rows]
        self._reach = [*accumulate((stop for _, stop in rows), max)]

    def over(self, region: Region) -> Iterator[tuple[StoredSegment, Region]]:
        """The segments within the region, each with what they have in common."""
        low, high = rows_of(region)
        for index in range(bisect_right(self._reach, low), len(self._segments)):
            if self._starts[index] >= high:
                break
            if (common := intersection(self._segments[index].stored, region)) is not None:
                yield self._segments[index], common


Sources = Sequence[dict[str, _Held]]


def _key(plan: TensorPlan, wanted: _Held, sources: Sources) -> object:
    """What a plan for one layer of a model has in common with those for the others, and a proof looks at."""
    number = {name: index for index, name in enumerate(wanted.tensors)}
    copies = []
    for copy in plan.copies:
        held = _source_of(copy, sources)
        tensors = held and tuple(number.get(name) for name in held.tensors)
        copies.append((held and held.geometry, tensors, *copy[2:]))
    return wanted.geometry, plan.shape, plan.view, plan.padding, tuple(copies)


def _source_of(copy: Copy, sources: Sources) -> _Held | None:
    is_rank = 0 <= copy.source_rank < len(sources)
    return sources[copy.source_rank].get(copy.source_name) if is_rank else None


def _plan_faults(plan: TensorPlan, wanted: _Held, sources: Sources) -> list[str]:
    if (plan.shape, plan.view, plan.padding) != (wanted.shape, wanted.view, wanted.padding):
        return [f"has shape {[*plan.shape]} or padding, needed is {[*wanted.shape]}, or other padding"]
    faults = [line for copy in plan.copies for line in _copy_faults(copy, wanted, sources)]
    regions = [*(copy.target for copy in plan.copies), *plan.padding]
    return faults or [*_tiling_faults(plan.view, regions, "written")]


def _copy_faults(copy: Copy, wanted: _Held, sources: Sources) -> Iterator[str]:
    """Whether a copy stays inside both tensors and takes every element to where it belongs."""
    line = (
        f"copy of {shown_region(copy.source)} of {shown(copy.source_name)} of source rank "
        f"{copy.source_rank} to {shown_region(copy.target)}"
    )
    source = _source_of(copy, sources)
    if source is None:
        yield f"{line}: that rank has no such tensor"
    elif not _fits(copy.source, source) or not _fits(copy.target, wanted):
        yield f"{line}: reaches outside the shapes {[*source.view]} and {[*wanted.view]}"
    elif region_shape(oriented(copy.source, copy.transposed)) != region_shape(copy.target):
        yield f"{line}: the two have different sizes"
    else:
        matched = 0
        for held, goal, part in _matched(copy, source, wanted):
            if not _is_same(held, goal, part, copy):
                yield f"{line}: {shown_region(part)} is put where another element belongs"
                return
            matched += volume(part)
        if matched != volume(copy.target):
            yield f"{line}: takes in padding"


def _matched(
    copy: Copy, source: _Held, wanted: _Held
) -> Iterator[tuple[StoredSegment, StoredSegment, Region]]:
    """The copy cut up by the segments of both sides; the regions are of the source."""
    for held, read in source.over(copy.source):
        for goal, common in wanted.over(_written(read, copy)):
            target = oriented(copy.target, copy.transposed)
            yield held, goal, moved(oriented(common, copy.transposed), target, copy.source)


def _is_same(held: StoredSegment, goal: StoredSegment, part: Region, copy: Copy) -> bool:
    """Whether a region of the source is, in full coordinates, what is wanted where it is put."""
    return (
        held.tensor == goal.tensor
        and copy.transposed == (held.transposed != goal.transposed)
        and _whole(held, part) == _whole(goal, _written(part, copy))
    )


def _written(part: Region, copy: Copy) -> Region:
    """Where the copy puts a part of its source."""
    return moved(oriented(part, copy.transposed), oriented(copy.source, copy.transposed), copy.target)


def _whole(segment: StoredSegment, part: Region) -> Region:
    """Where a part of the stored segment is in the full tensor."""
    stored = oriented(segment.stored, segment.transposed)
    return moved(oriented(part, segment.transposed), stored, segment.whole)


def _fits(region: Region, held: _Held) -> bool:
    return is_inside(region, full_region(held.view))
