"""What the files of all ranks hold: which region of which full tensor is where in which stored tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from mindbatch.checkpoint.placement.placement import Placements
from mindbatch.checkpoint.placement.regions import Region, Shape, moved, oriented


class StoredSegment(NamedTuple):
    """A region of a stored tensor, counted in its view, and the region of a full tensor that it holds.

    transposed: the stored region has its dimensions, and its elements, the other way round.
    """

    stored: Region
    tensor: str
    whole: Region
    transposed: bool = False

    def stored_at(self, whole: Region) -> Region:
        """Where a part of the full tensor's region is in the stored tensor."""
        return moved(oriented(whole, self.transposed), oriented(self.whole, self.transposed), self.stored)


@dataclass(frozen=True)
class StoredShard:
    """A tensor in a rank's file: segments and zeros (padding) fill it.

    view: the shape by which its regions are counted; the bytes are those of `shape`.
    """

    shape: Shape
    view: Shape
    segments: tuple[StoredSegment, ...]
    padding: tuple[Region, ...] = ()

    @property
    def tensors(self) -> tuple[str, ...]:
        """The full tensors that it holds parts of."""
        return tuple(dict.fromkeys(segment.tensor for segment in self.segments))

    @cached_property
    def geometry(self) -> tuple[object, ...]:
        """All but names, which the layers of a model have alike; tensors are numbered in their order."""
        number = {name: index for index, name in enumerate(self.tensors)}
        segments = tuple((number[each.tensor], each.stored, *each[2:]) for each in self.segments)
        return self.shape, self.view, segments, self.padding

    def of_renamed(self, names: Mapping[str, str]) -> StoredShard:
        """The same where the full tensors have other names."""
        return replace(
            self, segments=tuple(each._replace(tensor=names[each.tensor]) for each in self.segments)
        )


@dataclass(frozen=True)
class RankFiles:
    """The full shape of every tensor, and what each rank's file holds of them, by its names.

    is_renamed: the files have other names, or forms, than the full tensors.
    """

    shapes: Mapping[str, Shape]
    ranks: tuple[Mapping[str, StoredShard], ...]
    is_renamed: bool = False

    def stored_shapes(self, rank: int) -> dict[str, Shape]:
        """The shapes of the tensors in a rank's file."""
        return {name: stored.shape for name, stored in self.ranks[rank].items()}

    def stored_names(self) -> dict[str, tuple[str, ...]]:
        """The stored tensors that hold parts of a full tensor, by its name, in order of the ranks."""
        found: dict[str, dict[str, None]] = {name: {} for name in self.shapes}
        for tensors in self.ranks:
            for name, stored in tensors.items():
                for segment in stored.segments:
                    found[segment.tensor][name] = None
        return {name: tuple(stored) or (name,) for name, stored in found.items()}


def as_placed(placements: Placements, num_ranks: int) -> RankFiles:
    """Files that hold the shards of these placements as they are, under the same names."""
    ranks: list[dict[str, StoredShard]] = [{} for _ in range(num_ranks)]
    for name, placement in placements.items():
        for rank, shard in enumerate(placement.shards):
            if shard is not None:
                segments = tuple(StoredSegment(local, name, whole) for local, whole in shard.segments)
                ranks[rank][name] = StoredShard(shard.shape, shard.shape, segments, shard.padding)
    return RankFiles({name: placement.shape for name, placement in placements.items()}, tuple(ranks))
