"""Contents of all ranks' files: which region of which full tensor is where in which stored tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from mindbatch.checkpoint.placement.regions import (
    Placements,
    Region,
    Segment,
    Shape,
    Shard,
    full_region,
    region_shape,
)


@dataclass(frozen=True)
class StoredShard:
    """A tensor in a rank's file. tensors: the names of the full tensors that its segments count."""

    tensors: tuple[str, ...]
    shard: Shard

    @classmethod
    def of(
        cls,
        segments: Iterable[tuple[str, Segment]],
        shape: Shape,
        padding: tuple[Region, ...] = (),
        other_view: Shape | None = None,
    ) -> StoredShard:
        """Makes a shard as `Shard`; segments: each with the name of its full tensor."""
        named_segments = [*segments]
        number = {
            tensor: index for index, tensor in enumerate(dict.fromkeys(name for name, _ in named_segments))
        }
        numbered = tuple(segment._replace(tensor=number[tensor]) for tensor, segment in named_segments)
        return cls((*number,), Shard(shape, numbered, padding, other_view))

    @property
    def segments(self) -> Iterator[tuple[str, Segment]]:
        """The segments, each with the name of its full tensor."""
        return ((self.tensors[segment.tensor], segment) for segment in self.shard.segments)

    def within(self, region: Region) -> StoredShard:
        """Restricts the shard to a region, as a tensor of its own. The regions are counted in its shape."""
        assert self.shard.other_view is None
        shape = region_shape(region)
        part = Segment(full_region(shape), region)
        segments = (part.within(segment) for segment in self.shard.segments)
        return replace(
            self, shard=Shard(shape, tuple(segment for segment in segments if segment is not None))
        )

    def of_renamed(self, names: Mapping[str, str]) -> StoredShard:
        """Makes a shard of full tensors that have other names."""
        return replace(self, tensors=tuple(names[name] for name in self.tensors))


class Location(NamedTuple):
    """Location of a full tensor's region: a segment of the tensor of this name in a rank's file."""

    rank: int
    name: str
    segment: Segment


@dataclass(frozen=True)
class RankFiles:
    """The full shape of every tensor, and what each rank's file holds of them, by its names.

    is_renamed: the files have other names, or forms, than the full tensors.
    """

    shapes: Mapping[str, Shape]
    ranks: tuple[Mapping[str, StoredShard], ...]
    is_renamed: bool = False

    def locations(self) -> Iterator[tuple[str, Location]]:
        """Every segment of every rank, with the name of its full tensor; rank by rank."""
        for rank, tensors in enumerate(self.ranks):
            for name, stored in tensors.items():
                for tensor, segment in stored.segments:
                    yield tensor, Location(rank, name, segment)

    def stored_shapes(self, rank: int) -> dict[str, Shape]:
        return {name: stored.shard.shape for name, stored in self.ranks[rank].items()}

    def stored_names(self) -> dict[str, tuple[str, ...]]:
        """The stored tensors that hold parts of a full tensor, by its name, in order of the ranks."""
        stored_names: dict[str, dict[str, None]] = {name: {} for name in self.shapes}
        for tensor, location in self.locations():
            stored_names[tensor][location.name] = None
        return {name: tuple(stored) or (name,) for name, stored in stored_names.items()}


def as_placed(placements: Placements, num_ranks: int) -> RankFiles:
    """Files that hold the shards of these placements as they are, under the same names."""
    ranks: list[dict[str, StoredShard]] = [{} for _ in range(num_ranks)]
    for name, placement in placements.items():
        for tensors, shard in zip(ranks, placement.shards, strict=True):
            if shard is not None:
                tensors[name] = StoredShard((name,), shard)
    return RankFiles({name: placement.shape for name, placement in placements.items()}, tuple(ranks))
