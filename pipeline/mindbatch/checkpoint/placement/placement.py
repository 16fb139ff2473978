"""Where the elements of a tensor are: which regions of it each rank holds, and at which place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mindbatch.checkpoint.placement.regions import Region, Shape, full_region, merged, volume


class Segment(NamedTuple):
    """A region of a rank's tensor, and that of the full tensor which it holds; both have the same sizes."""

    local: Region
    whole: Region


@dataclass(frozen=True)
class Shard:
    """What a rank holds of a tensor.

    shape: of the rank's tensor. padding: regions of it that are zero and in no full tensor, as the end of
    a vocabulary that does not divide; segments and padding together are all of it.
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
    """The segments in order of the full tensor, as few as may be."""
    return tuple(Segment(local, whole) for local, whole in merged(segments))


def single_segment(shape: Shape, whole: Region) -> Shard:
    """The shard of a rank that holds one region and nothing else."""
    return Shard(shape, (Segment(full_region(shape), whole),) if volume(whole) else ())


def whole_placements(shapes: Mapping[str, Shape]) -> dict[str, Placement]:
    """All tensors on one rank, as in a full checkpoint."""
    return {
        name: Placement(name, shape, (single_segment(shape, full_region(shape)),))
        for name, shape in shapes.items()
    }
