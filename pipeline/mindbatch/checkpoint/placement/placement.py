"""Where the elements of a tensor are: which boxes of it each rank holds, and at which place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mindbatch.checkpoint.placement.regions import (
    Region,
    Shape,
    first_overlap,
    full_region,
    is_inside,
    merged,
    region_shape,
    shown_region,
    uncovered,
    volume,
)


class Segment(NamedTuple):
    """A box of a rank's tensor, and the box of the full tensor that it holds; both have the same sizes."""

    local: Region
    whole: Region


@dataclass(frozen=True)
class Shard:
    """What a rank holds of a tensor.

    shape: of the rank's tensor. padding: boxes of it that are zero and in no full tensor, as the end of a
    vocabulary that does not divide; pieces and padding together are all of it.
    """

    shape: Shape
    segments: tuple[Segment, ...]
    padding: tuple[Region, ...] = ()


@dataclass(frozen=True)
class Placement:
    """A tensor of `shape` and the shard of it that each rank holds, None where a rank has not got it."""

    name: str
    shape: Shape
    shards: tuple[Shard | None, ...]

    @property
    def ranks(self) -> tuple[tuple[Segment, ...], ...]:
        """The pieces of each rank."""
        return tuple(shard.segments if shard else () for shard in self.shards)

    @property
    def holders(self) -> tuple[int, ...]:
        """The ranks that have the tensor."""
        return tuple(rank for rank, shard in enumerate(self.shards) if shard is not None)

    @property
    def geometry(self) -> tuple[Shape, tuple[Shard | None, ...]]:
        """All but the name: what placements of many layers have in common."""
        return self.shape, self.shards

    def local_shape(self, rank: int) -> Shape | None:
        """The shape of the rank's tensor, None where it has not got it."""
        shard = self.shards[rank]
        return shard.shape if shard else None


Placements = Mapping[str, Placement]


def joined_segments(pieces: list[Segment]) -> tuple[Segment, ...]:
    """The pieces in order of the full tensor, as few as may be."""
    return tuple(Segment(local, whole) for local, whole in merged(pieces))


def single_segment(shape: Shape, whole: Region) -> Shard:
    """The shard of a rank that holds one box and nothing else."""
    return Shard(shape, (Segment(full_region(shape), whole),) if volume(whole) else ())


def whole_placements(shapes: Mapping[str, Shape]) -> dict[str, Placement]:
    """All tensors on one rank, as in a full checkpoint."""
    return {
        name: Placement(name, shape, (single_segment(shape, full_region(shape)),))
        for name, shape in shapes.items()
    }


def placement_faults(placement: Placement) -> list[str]:
    """Whether the shards can be true and lose nothing: each fault names the box."""
    faults: list[str] = []
    for rank, shard in enumerate(placement.shards):
        if shard is not None:
            faults += [f"rank {rank}: {fault}" for fault in _shard_faults(shard, placement.shape)]
    pieces = [piece.whole for rank in placement.ranks for piece in rank]
    if not faults:
        lost = uncovered(full_region(placement.shape), pieces)
        faults += [f"{shown_region(box)} of shape {[*placement.shape]} is on no rank" for box in lost]
    return faults


def _shard_faults(shard: Shard, shape: Shape) -> list[str]:
    faults: list[str] = []
    for local, whole in shard.segments:
        if not is_inside(local, full_region(shard.shape)):
            faults.append(f"{shown_region(local)} is outside its shape {[*shard.shape]}")
        if not is_inside(whole, full_region(shape)):
            faults.append(f"{shown_region(whole)} is outside the full shape {[*shape]}")
        if region_shape(local) != region_shape(whole):
            faults.append(f"{shown_region(local)} cannot hold {shown_region(whole)}, which has other sizes")
    faults += [
        f"padding {shown_region(box)} is outside its shape {[*shard.shape]}"
        for box in shard.padding
        if not is_inside(box, full_region(shard.shape))
    ]
    return faults or _tiling_faults(shard)


def _tiling_faults(shard: Shard) -> list[str]:
    """Whether pieces and padding are the rank's tensor, each element once."""
    boxes = [*(piece.local for piece in shard.segments), *shard.padding]
    if (twice := first_overlap(boxes)) is not None:
        return [f"{shown_region(twice)} of its shape {[*shard.shape]} is filled twice"]
    if sum(map(volume, boxes)) == volume(full_region(shard.shape)):
        return []
    empty = uncovered(full_region(shard.shape), boxes)
    return [f"{shown_region(box)} of its shape {[*shard.shape]} is filled by nothing" for box in empty]
