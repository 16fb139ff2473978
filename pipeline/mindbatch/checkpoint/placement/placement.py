"""Shards of a model's tensors on ranks, made of regions of full tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mindbatch.checkpoint.placement.regions import (
    Region,
    Shape,
    full_region,
    intersection,
    merged,
    moved,
    oriented,
    volume,
)


class Segment(NamedTuple):
    """A region of a rank's tensor, and the region of a full tensor that it holds.

    local: counted in the view of the rank's tensor. tensor: the number of the full tensor among those that
    the shard holds parts of. transposed: local has its dimensions, and its elements, the other way round.
    """

    local: Region
    whole: Region
    tensor: int = 0
    transposed: bool = False

    def local_at(self, whole: Region) -> Region:
        """Maps a part of the full tensor's region to the rank's tensor."""
        return moved(oriented(whole, self.transposed), oriented(self.whole, self.transposed), self.local)

    def whole_at(self, local: Region) -> Region:
        """Maps a part of the rank's region to the full tensor."""
        return moved(oriented(local, self.transposed), oriented(self.local, self.transposed), self.whole)

    def within(self, outer: Segment) -> Segment | None:
        """Composes it with `outer`, whose rank's tensor is its full tensor; None if they share no element."""
        common = intersection(self.whole, outer.local)
        if common is None:
            return None
        transposed = self.transposed != outer.transposed
        return Segment(self.local_at(common), outer.whole_at(common), outer.tensor, transposed)


@dataclass(frozen=True)
class Shard:
    """Part of full tensors that a rank holds, in one tensor of its own; the names are left out.

    shape: of the rank's tensor. padding: regions of it that are zero and in no full tensor, as the end of
    a vocabulary that does not divide; segments and padding together are all of it.
    other_view: the shape by which its regions are counted, where that is another one of the same bytes.
    """

    shape: Shape
    segments: tuple[Segment, ...]
    padding: tuple[Region, ...] = ()
    other_view: Shape | None = None

    @property
    def view(self) -> Shape:
        """The shape by which its regions are counted."""
        return self.shape if self.other_view is None else self.other_view


@dataclass(frozen=True)
class Placement:
    """A tensor of `shape` and the shard of it that each rank holds, None where a rank has not got it."""

    name: str
    shape: Shape
    shards: tuple[Shard | None, ...]

    @property
    def ranks(self) -> tuple[tuple[Segment, ...], ...]:
        """The segments of each rank."""
        return tuple(shard.segments if shard else () for shard in self.shards)

    @property
    def holders(self) -> tuple[int, ...]:
        """The ranks that have the tensor."""
        return tuple(rank for rank, shard in enumerate(self.shards) if shard is not None)

    def local_shape(self, rank: int) -> Shape | None:
        """The shape of the rank's tensor, None where it has not got it."""
        shard = self.shards[rank]
        return shard.shape if shard else None


Placements = Mapping[str, Placement]


def joined_segments(segments: list[Segment]) -> tuple[Segment, ...]:
    """Segments of one tensor in order of it, as few as may be."""
    return tuple(Segment(*pair) for pair in merged((segment.local, segment.whole) for segment in segments))


def single_segment(shape: Shape, whole: Region) -> Shard:
    """The shard of a rank that holds one region and nothing else."""
    return Shard(shape, (Segment(full_region(shape), whole),) if volume(whole) else ())


def whole_placements(shapes: Mapping[str, Shape]) -> dict[str, Placement]:
    """Places all tensors on one rank, as in a full checkpoint."""
    return {
        name: Placement(name, shape, (single_segment(shape, full_region(shape)),))
        for name, shape in shapes.items()
    }
