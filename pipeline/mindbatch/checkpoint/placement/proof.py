"""Proves a reshard plan: each element of every target tensor is written once, from the right source.

The proof looks at the copies alone, whatever way they were found. Where each of their elements is from, and
where it goes, is worked out in coordinates of the full tensors from what the files of both sides hold, by
regions and exact counts, so that the cost does not depend on the sizes of the tensors.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import NamedTuple

from mindbatch.checkpoint.error_lines import raise_if_any, shown
from mindbatch.checkpoint.placement.plan import Copy, TensorPlan, plan_copies
from mindbatch.checkpoint.placement.regions import (
    RankFiles,
    Region,
    Segment,
    Shape,
    Shard,
    StoredShard,
    first_overlap,
    full_region,
    intersection,
    is_inside,
    oriented,
    region_shape,
    rows_of,
    shown_region,
    uncovered,
    volume,
)


def proved_copies(source: RankFiles, target: RankFiles) -> list[TensorPlan]:
    """Plans copies and proves the plan. CheckpointError as for `plan_copies` and `prove`."""
    plans = plan_copies(source, target)
    prove(plans, source, target)
    return plans


def prove(plans: Sequence[TensorPlan], source: RankFiles, target: RankFiles) -> None:
    """Proves that the plan writes every element of every target tensor once, from the right source.

    It also proves that the files of both sides are possible as described, and together hold all elements.

    Raises:
        CheckpointError: the first errors, each with the tensor, the rank and the region.
    """
    raise_if_any([*side_errors("source", source), *side_errors("target", target)])
    indexed = cache(_Indexed)
    sources = [
        {name: _Stored(stored.tensors, indexed(stored.shard)) for name, stored in tensors.items()}
        for tensors in source.ranks
    ]
    right: set[object] = set()
    needed = {(name, rank) for rank, tensors in enumerate(target.ranks) for name in tensors}
    errors: list[str] = []
    for plan in plans:
        if (plan.name, plan.rank) not in needed:
            errors.append(f"{_label(plan)}: not wanted, or planned twice")
            continue
        needed.remove((plan.name, plan.rank))
        goal = target.ranks[plan.rank][plan.name]
        wanted = _Stored(goal.tensors, indexed(goal.shard))
        key = _key(plan, wanted, sources)
        if key not in right:
            plan_errors = [f"{_label(plan)}: {line}" for line in _plan_errors(plan, wanted, sources)]
            errors += plan_errors
            right |= set() if plan_errors else {key}
    missing = (f"tensor {shown(name)}: not made for target rank {rank}" for name, rank in sorted(needed))
    raise_if_any([*errors, *missing])


def _label(plan: TensorPlan) -> str:
    return f"tensor {shown(plan.name)}: target rank {plan.rank}"


def side_errors(side: str, files: RankFiles) -> Iterator[str]:
    """Lists stored tensors that their segments do not fill, and elements that no rank holds."""
    stored_regions: dict[str, dict[Region, None]] = {name: {} for name in files.shapes}
    is_sound, right = True, set[object]()
    for rank, tensors in enumerate(files.ranks):
        for name, stored in tensors.items():
            key = (stored.shard, *(files.shapes.get(tensor) for tensor in stored.tensors))
            if key not in right:
                errors = _stored_errors(stored, files)
                is_sound = is_sound and not errors
                yield from (f"tensor {shown(name)}: {side}: rank {rank}: {line}" for line in errors)
                right |= set() if errors else {key}
            for tensor, segment in stored.segments:
                stored_regions.setdefault(tensor, {})[segment.whole] = None
    lost = cache(lambda shape, regions: uncovered(full_region(shape), sorted(regions)))
    for name, shape in files.shapes.items() if is_sound else ():
        for region in lost(shape, tuple(stored_regions[name])):
            yield f"tensor {shown(name)}: {side}: {shown_region(region)} of shape {[*shape]} is on no rank"


def _stored_errors(stored: StoredShard, files: RankFiles) -> list[str]:
    errors: list[str] = []
    for tensor, segment in stored.segments:
        where, shape = shown_region(segment.whole), files.shapes.get(tensor)
        if shape is None:
            errors.append(f"holds a part of {shown(tensor)}, which there is not")
        elif not is_inside(segment.whole, full_region(shape)):
            errors.append(f"{where} is outside the full shape {[*shape]}")
        if region_shape(oriented(segment.local, segment.transposed)) != region_shape(segment.whole):
            errors.append(f"{shown_region(segment.local)} cannot hold {where}, which has other sizes")
    shard = stored.shard
    regions = [*(segment.local for segment in shard.segments), *shard.padding]
    return errors or [*_tiling_errors(shard.view, regions, "filled")]


def _tiling_errors(shape: Shape, regions: Sequence[Region], done: str) -> Iterator[str]:
    whole = full_region(shape)
    for region in regions:
        if not is_inside(region, whole):
            yield f"{shown_region(region)} is outside its shape {[*shape]}"
            return
    if (twice := first_overlap(regions)) is not None:
        yield f"{shown_region(twice)} of its shape {[*shape]} is {done} twice"
    elif sum(map(volume, regions)) != volume(whole):
        yield f"{shown_region(uncovered(whole, regions)[0])} of its shape {[*shape]} is {done} by nothing"


class _Indexed:
    """The segments of a shard, found by their rows. Those of equal shards are one object."""

    def __init__(self, shard: Shard) -> None:
        self.shard, self.view = shard, shard.view
        self._segments = sorted(shard.segments)
        rows = [rows_of(segment.local) for segment in self._segments]
        self._starts = [start for start, _ in rows]
        self._reach = [*accumulate((stop for _, stop in rows), max)]

    def over(self, region: Region) -> Iterator[tuple[Segment, Region]]:
        """The segments within the region, each with what they have in common."""
        low, high = rows_of(region)
        for index in range(bisect_right(self._reach, low), len(self._segments)):
            if self._starts[index] >= high:
                break
            if (common := intersection(self._segments[index].local, region)) is not None:
                yield self._segments[index], common


class _Stored(NamedTuple):
    """A stored tensor: the names of its full tensors, and its segments."""

    tensors: tuple[str, ...]
    segments: _Indexed


StoredTensors = Sequence[Mapping[str, _Stored]]


def _key(plan: TensorPlan, wanted: _Stored, sources: StoredTensors) -> object:
    """Builds a key that the plans for alike layers of a model share: all that a proof looks at."""
    copies = []
    for copy in plan.copies:
        stored = _source_of(copy, sources)
        numbers = stored and tuple(
            wanted.tensors.index(name) if name in wanted.tensors else None for name in stored.tensors
        )
        copies.append((stored and stored.segments, numbers, copy.source, copy.target, copy.transposed))
    return wanted.segments, plan.shape, plan.view, plan.padding, tuple(copies)


def _source_of(copy: Copy, sources: StoredTensors) -> _Stored | None:
    is_rank = 0 <= copy.source_rank < len(sources)
    return sources[copy.source_rank].get(copy.source_name) if is_rank else None


def _plan_errors(plan: TensorPlan, wanted: _Stored, sources: StoredTensors) -> list[str]:
    shard = wanted.segments.shard
    if (plan.shape, plan.view, plan.padding) != (shard.shape, shard.view, shard.padding):
        return [f"has shape {[*plan.shape]} or padding, needed is {[*shard.shape]}, or other padding"]
    errors = [line for copy in plan.copies for line in _copy_errors(copy, wanted, sources)]
    regions = [*(copy.target for copy in plan.copies), *plan.padding]
    return errors or [*_tiling_errors(plan.view, regions, "written")]


def _copy_errors(copy: Copy, wanted: _Stored, sources: StoredTensors) -> Iterator[str]:
    """Checks that a copy stays inside both tensors and takes every element to where it belongs."""
    line = (
        f"copy of {shown_region(copy.source)} of {shown(copy.source_name)} of source rank "
        f"{copy.source_rank} to {shown_region(copy.target)}"
    )
    source = _source_of(copy, sources)
    if source is None:
        yield f"{line}: that rank has no such tensor"
    elif not _fits(copy.source, source) or not _fits(copy.target, wanted):
        yield f"{line}: reaches outside the shapes {[*source.segments.view]} and {[*wanted.segments.view]}"
    elif region_shape(oriented(copy.source, copy.transposed)) != region_shape(copy.target):
        yield f"{line}: the two have different sizes"
    else:
        copied, matched = Segment(copy.target, copy.source, transposed=copy.transposed), 0
        for from_segment, to_segment, part in _matched(copied, source, wanted):
            is_tensor = source.tensors[from_segment.tensor] == wanted.tensors[to_segment.tensor]
            if not is_tensor or not _is_same(from_segment, to_segment, part, copied):
                yield f"{line}: {shown_region(part)} is put where another element belongs"
                return
            matched += volume(part)
        if matched != volume(copy.target):
            yield f"{line}: takes in padding"


def _matched(copy: Segment, source: _Stored, wanted: _Stored) -> Iterator[tuple[Segment, Segment, Region]]:
    """Divides a copy, `local` its target, by the segments of both sides; the regions are of the source."""
    for from_segment, read in source.segments.over(copy.whole):
        for to_segment, common in wanted.segments.over(copy.local_at(read)):
            yield from_segment, to_segment, copy.whole_at(common)


def _is_same(from_segment: Segment, to_segment: Segment, part: Region, copy: Segment) -> bool:
    """True if a region of the source is, in full coordinates, what is wanted where it is put."""
    if copy.transposed != (from_segment.transposed != to_segment.transposed):
        return False
    return from_segment.whole_at(part) == to_segment.whole_at(copy.local_at(part))


def _fits(region: Region, stored: _Stored) -> bool:
    return is_inside(region, full_region(stored.segments.view))
