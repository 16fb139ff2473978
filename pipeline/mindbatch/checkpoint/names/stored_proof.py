"""Proof of a plan in the names of the files, after it was told in them and before any byte moves.

It looks at nothing but the final copies: where each of their elements is from, and where it goes, is worked
out again in coordinates of the full Hugging Face tensors, from what the ranks of both sides hold.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.names.named_ranks import Held, NamedRanks
from mindbatch.checkpoint.names.stored_plan import StoredCopy, StoredPlan
from mindbatch.checkpoint.placement.regions import (
    Region,
    first_overlap,
    full_region,
    intersection,
    is_inside,
    moved,
    region_shape,
    shown_region,
    uncovered,
    volume,
)


def prove_stored(plans: Sequence[StoredPlan], source: NamedRanks, target: NamedRanks) -> None:
    """Shows that every element of every tensor in the target's files is made once, of the right element.

    Raises:
        CheckpointError: the first faults, each with the tensor, the rank and the box.
    """
    origins = [_Files(source, rank) for rank in range(len(source.names))]
    files = [_Files(target, rank) for rank in range(len(target.names))]
    faults: list[str] = []
    needed = {(name, rank) for rank, file in enumerate(files) for name in file.held}
    for plan in plans:
        where = f"tensor {shown(plan.name)}: target rank {plan.rank}"
        if (plan.name, plan.rank) not in needed:
            faults.append(f"{where}: not wanted, or planned twice")
            continue
        needed.remove((plan.name, plan.rank))
        faults += [f"{where}: {line}" for line in _plan_faults(plan, files[plan.rank], origins)]
    raise_if_any(
        [*faults, *(f"tensor {shown(name)}: not made for target rank {rank}" for name, rank in needed)]
    )


class _Files:
    """What a rank's file holds, to be looked up by boxes."""

    def __init__(self, ranks: NamedRanks, rank: int) -> None:
        views = ranks.views(rank)
        self.shapes = ranks.stored_shapes(rank)
        self.views = {name: views.get(name, shape) for name, shape in self.shapes.items()}
        self.held = {name: _Places(held) for name, held in ranks.held(rank).items()}


class _Places:
    """Boxes of one tensor, found by their rows."""

    def __init__(self, held: Iterable[Held]) -> None:
        self._held = sorted(held, key=lambda each: each.place)
        rows = [each.place[0] if each.place else (0, 1) for each in self._held]
        self._starts = [start for start, _ in rows]
        self._reach = [*accumulate((stop for _, stop in rows), max)]

    def over(self, box: Region) -> Iterator[tuple[Held, Region]]:
        """What is within the box, each with what they have in common."""
        low, high = box[0] if box else (0, 1)
        for index in range(bisect_right(self._reach, low), len(self._held)):
            if self._starts[index] >= high:
                break
            if (common := intersection(self._held[index].place, box)) is not None:
                yield self._held[index], common


def _plan_faults(plan: StoredPlan, file: _Files, origins: Sequence[_Files]) -> list[str]:
    if (plan.shape, plan.view) != (file.shapes[plan.name], file.views[plan.name]):
        return [f"has shape {[*plan.shape]}, needed is {[*file.shapes[plan.name]]}"]
    faults = [line for copy in plan.copies for line in _copy_faults(plan, copy, file, origins)]
    return faults or [*_tiling_faults(plan)]


def _copy_faults(
    plan: StoredPlan, copy: StoredCopy, file: _Files, origins: Sequence[_Files]
) -> Iterator[str]:
    """Whether a copy stays inside both tensors and takes every element to where it belongs."""
    line = (
        f"copy of {shown_region(copy.source)} of {shown(copy.source_name)} of source rank {copy.source_rank} "
        f"to {shown_region(copy.target)}"
    )
    origin = origins[copy.source_rank] if 0 <= copy.source_rank < len(origins) else None
    if origin is None or copy.source_name not in origin.views:
        yield f"{line}: that rank has no such tensor"
    elif not _fits(copy.source, origin.views, copy.source_name) or not _fits(
        copy.target, file.views, plan.name
    ):
        yield f"{line}: reaches outside a tensor"
    elif region_shape(_turned(copy.source, copy.transposed)) != region_shape(copy.target):
        yield f"{line}: the two have different sizes"
    else:
        matched = 0
        for held, wanted, part in _matched(copy, origin.held[copy.source_name], file.held[plan.name]):
            if not _is_same(held, wanted, part, copy):
                yield f"{line}: {shown_region(part)} is put where another element belongs"
                return
            matched += volume(part)
        if matched != volume(copy.target):
            yield f"{line}: takes in padding"


def _matched(copy: StoredCopy, origin: _Places, file: _Places) -> Iterator[tuple[Held, Held, Region]]:
    """The copy cut up by what both sides hold; the boxes are of the source."""
    for held, read in origin.over(copy.source):
        written = moved(_turned(read, copy.transposed), _turned(copy.source, copy.transposed), copy.target)
        for wanted, common in file.over(written):
            part = moved(_turned(common, copy.transposed), _turned(copy.target, copy.transposed), copy.source)
            yield held, wanted, part


def _is_same(held: Held, wanted: Held, part: Region, copy: StoredCopy) -> bool:
    """Whether a box of the source is, in full coordinates, what is wanted at the place it is put to."""
    goal = moved(_turned(part, copy.transposed), _turned(copy.source, copy.transposed), copy.target)
    return (
        held.original == wanted.original
        and copy.transposed == (held.transposed != wanted.transposed)
        and _whole(held, part) == _whole(wanted, goal)
    )


def _whole(held: Held, box: Region) -> Region:
    """Where a box within what is held is in the full tensor."""
    return moved(_turned(box, held.transposed), _turned(held.place, held.transposed), held.whole)


def _tiling_faults(plan: StoredPlan) -> Iterator[str]:
    """Whether the copies and the padding are all of the tensor, each element once."""
    boxes = [*(copy.target for copy in plan.copies), *plan.padding]
    whole = full_region(plan.view)
    if not all(is_inside(box, whole) for box in plan.padding):
        yield f"padding is outside {[*plan.view]}"
    elif (twice := first_overlap(boxes)) is not None:
        yield f"{shown_region(twice)} of {[*plan.view]} is written twice"
    elif sum(map(volume, boxes)) != volume(whole):
        yield f"{shown_region(uncovered(whole, boxes)[0])} of {[*plan.view]} is made of nothing"


def _fits(box: Region, views: Mapping[str, tuple[int, ...]], name: str) -> bool:
    return is_inside(box, full_region(views[name]))


def _turned(box: Region, transposed: bool) -> Region:
    """The box with its dimensions the other way round, where that is so."""
    return box[::-1] if transposed else box
