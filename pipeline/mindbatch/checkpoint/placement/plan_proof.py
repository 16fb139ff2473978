"""Proof of a reshard plan: every element of a target tensor comes from one source element, the right one.

It judges the copies by coordinates and exact counts of boxes, whatever way they were found, and its cost does
not depend on the sizes of the tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.placement.placement import Placement, Shard, placement_faults
from mindbatch.checkpoint.placement.plan import Copy, ReshardPlan, TensorPlan
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


def prove(plan: ReshardPlan) -> tuple[TensorPlan, ...]:
    """Shows that the plan makes every tensor of every target rank, each element once and from its own place.

    Also shown: the placements of both sides are sound, and the target loses no element of any tensor.
    Returns the tensors that have padding: its elements come from nowhere and are zero.

    Raises:
        CheckpointError: the first faults, each with the tensor and the box.
    """
    raise_if_any([*_placement_faults(plan), *_listing_faults(plan)])
    raise_if_any([*_copy_faults(plan)])
    return tuple(tensor for tensor in plan.tensors if tensor.padding)


def copy_faults(source: Placement, shard: Shard, copies: Sequence[Copy]) -> list[str]:
    """What is wrong with the copies that make one rank's shard of a tensor; nothing when they are right."""
    faults = [fault for copy in copies for fault in _faults_of(source, shard, copy)]
    if faults:
        return faults
    targets = [copy.target for copy in copies]
    if (twice := first_overlap(targets)) is not None:
        return [f"{shown_region(twice)} of its shape {[*shard.shape]} is written twice"]
    if sum(map(volume, targets)) == sum(volume(piece.local) for piece in shard.segments):
        return []
    return [
        f"{shown_region(box)} of the full tensor is copied from no rank" for box in _missing(shard, targets)
    ]


def _placement_faults(plan: ReshardPlan) -> Iterator[str]:
    known: dict[object, list[str]] = {}  # the layers of a model are all cut alike
    for side, placements in (("source", plan.source), ("target", plan.target)):
        for name in plan.target:
            if name not in placements:
                yield f"tensor {shown(name)}: not in the {side}"
                continue
            key = placements[name].geometry
            if key not in known:
                known[key] = placement_faults(placements[name])
            yield from (f"tensor {shown(name)}: {side}: {fault}" for fault in known[key])


def _listing_faults(plan: ReshardPlan) -> Iterator[str]:
    """Whether there is one plan for each tensor of each rank, with the shape and padding of the placement."""
    needed = {
        (name, rank): (shard.shape, shard.padding)
        for name, placement in plan.target.items()
        for rank, shard in enumerate(placement.shards)
        if shard is not None
    }
    for tensor in plan.tensors:
        made = needed.pop((tensor.name, tensor.rank), None)
        if made != (tensor.shape, tensor.padding):
            yield f"tensor {shown(tensor.name)}: not wanted, or not so, on target rank {tensor.rank}"
    yield from (f"tensor {shown(name)}: not made for target rank {rank}" for name, rank in needed)


def _copy_faults(plan: ReshardPlan) -> Iterator[str]:
    known: dict[object, list[str]] = {}
    for tensor in plan.tensors:
        source, target = plan.source[tensor.name], plan.target[tensor.name]
        shard = target.shards[tensor.rank]
        assert shard is not None  # _listing_faults
        key = (source.geometry, shard, tensor.copies)
        if key not in known:
            known[key] = copy_faults(source, shard, tensor.copies)
        yield from (f"tensor {shown(tensor.name)}: target rank {tensor.rank}: {line}" for line in known[key])


def _faults_of(source: Placement, shard: Shard, copy: Copy) -> Iterator[str]:
    """Whether a copy stays inside both tensors and takes every element to where it belongs."""
    line = f"copy of {shown_region(copy.source)} of source rank {copy.source_rank} "
    line += f"to {shown_region(copy.target)}"
    origin = source.shards[copy.source_rank] if 0 <= copy.source_rank < len(source.shards) else None
    if origin is None:
        yield f"{line}: that rank has no such tensor"
    elif not _fits(copy.source, origin) or not _fits(copy.target, shard):
        yield f"{line}: reaches outside the shapes {[*origin.shape]} and {[*shard.shape]}"
    elif region_shape(copy.source) != region_shape(copy.target):
        yield f"{line}: the two have different sizes"
    else:
        matched = list(_matched(origin, shard, copy))
        wrong = next((box for box, is_right in matched if not is_right), None)
        if wrong is not None:
            yield f"{line}: {shown_region(wrong)} of the full tensor is put where another element belongs"
        elif sum(volume(box) for box, _ in matched) != volume(copy.target):
            yield f"{line}: takes in padding"


def _fits(box: Region, shard: Shard) -> bool:
    return is_inside(box, full_region(shard.shape))


def _matched(origin: Shard, shard: Shard, copy: Copy) -> Iterator[tuple[Region, bool]]:
    """A copy cut up by the pieces of both sides: boxes of the full tensor, and whether each is in place."""
    for held in origin.segments:
        if (read := intersection(copy.source, held.local)) is None:
            continue
        written = moved(read, copy.source, copy.target)
        for wanted in shard.segments:
            if (box := intersection(written, wanted.local)) is not None:
                taken = moved(moved(box, copy.target, copy.source), held.local, held.whole)
                yield taken, taken == moved(box, wanted.local, wanted.whole)


def _missing(shard: Shard, targets: Sequence[Region]) -> Iterator[Region]:
    for piece in shard.segments:
        for box in uncovered(piece.local, targets):
            yield moved(box, piece.local, piece.whole)
