"""Regions of tensor elements in exact integers, and descriptions of what ranks and their files hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

Shape = tuple[int, ...]
Region = tuple[tuple[int, int], ...]
"""(start, stop) for each dimension; () is the one element of a scalar."""
Pair = tuple[Region, Region]
"""The same elements in two systems of coordinates: regions of the same sizes."""


def full_region(shape: Shape) -> Region:
    return tuple((0, size) for size in shape)


def region_shape(region: Region) -> Shape:
    return tuple(stop - start for start, stop in region)


def volume(region: Region) -> int:
    return math.prod(stop - start for start, stop in region)


def slices_of(region: Region) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in region)


def intersection(one: Region, other: Region) -> Region | None:
    """Intersects two regions; None if they share no element."""
    common = tuple(
        (max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True)
    )  # fmt: skip
    return common if all(start < stop for start, stop in common) else None


def is_inside(inner: Region, outer: Region) -> bool:
    """True if every element of `inner` is in `outer`; a region of other dimensions is not."""
    return len(inner) == len(outer) and all(
        c <= a <= b <= d for (a, b), (c, d) in zip(inner, outer, strict=True)
    )


def moved(region: Region, source: Region, target: Region) -> Region:
    """Moves a part of `source` to the same offset in `target`, which has the same sizes."""
    return tuple(
        (start - old + new, stop - old + new)
        for (start, stop), (old, _), (new, _) in zip(region, source, target, strict=True)
    )


def oriented(region: Region, transposed: bool) -> Region:
    """Returns the region, with its dimensions reversed if it is transposed."""
    return region[::-1] if transposed else region


def rows_of(region: Region) -> tuple[int, int]:
    """Range of a region in the first dimension; a scalar is one row."""
    return region[0] if region else (0, 1)


def difference(region: Region, hole: Region) -> list[Region]:
    """Divides `region` without `hole` into disjoint regions."""
    common = intersection(region, hole)
    if common is None:
        return [region]
    rest: list[Region] = []
    for dimension, ((start, stop), (low, high)) in enumerate(zip(region, common, strict=True)):
        for side in ((start, low), (high, stop)):
            if side[0] < side[1]:
                rest.append((*common[:dimension], side, *region[dimension + 1 :]))
    return rest


def uncovered(region: Region, covers: Iterable[Region]) -> list[Region]:
    """Divides the elements of `region` outside all `covers` into disjoint regions."""
    rest = [region] if volume(region) else []
    for cover in covers:
        if not rest:
            break
        rest = [left for region in rest for left in difference(region, cover)]
    return rest


def first_overlap(regions: Sequence[Region]) -> Region | None:
    """Finds elements that are in two of the regions, or None. Empty regions overlap nothing.

    They are swept along the dimension in which most of them start apart.
    """
    regions = [region for region in regions if volume(region)]
    if len(regions) < 2:
        return None
    if not regions[0]:
        return ()
    along = max(
        range(len(regions[0])), key=lambda dimension: len({region[dimension][0] for region in regions})
    )
    open_regions: list[Region] = []
    for region in sorted(regions, key=lambda box: box[along]):
        open_regions = [box for box in open_regions if box[along][1] > region[along][0]]
        for box in open_regions:
            if (common := intersection(box, region)) is not None:
                return common
        open_regions.append(region)
    return None


def merged(pairs: Iterable[Pair]) -> list[Pair]:
    """Joins pairs that are adjacent on both sides, in the order of their second regions.

    The regions of each side must be disjoint.
    """
    joined = list(pairs)
    count = 0
    while count != len(joined):
        count = len(joined)
        for dimension in reversed(range(len(joined[0][0]) if joined else 0)):
            joined = _merged_along(joined, dimension)
    return sorted(joined, key=lambda pair: pair[1])


def _merged_along(pairs: Iterable[Pair], dimension: int) -> list[Pair]:
    joined: list[Pair] = []
    for pair in sorted(pairs, key=lambda pair: (*_without(pair, dimension), pair[0][dimension])):
        last = joined[-1] if joined else None
        if last and _without(last, dimension) == _without(pair, dimension) and _touch(last, pair, dimension):
            first, second = (_extended(last[side], pair[side], dimension) for side in (0, 1))
            joined[-1] = (first, second)
        else:
            joined.append(pair)
    return joined


def _without(pair: Pair, dimension: int) -> tuple[Region, Region]:
    first, second = (region[:dimension] + region[dimension + 1 :] for region in pair)
    return first, second


def _touch(one: Pair, other: Pair, dimension: int) -> bool:
    return all(a[dimension][1] == b[dimension][0] for a, b in zip(one, other, strict=True))


def _extended(region: Region, by: Region, dimension: int) -> Region:
    return (*region[:dimension], (region[dimension][0], by[dimension][1]), *region[dimension + 1 :])


def shown_region(region: Region) -> str:
    """Writes a region as Python does: [0:4, 8:16]."""
    return f"[{', '.join(f'{start}:{stop}' for start, stop in region)}]"


class Segment(NamedTuple):
    """A region of a rank's tensor, and the region of a full tensor that it holds.

    local: region of the rank's tensor, counted in its view.
    whole: region of the full tensor.
    tensor: index of the full tensor among those that the shard holds parts of.
    transposed: True if the rank's tensor holds the transpose.
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

    shape: shape of the rank's tensor, which segments and padding cover.
    padding: regions that are zero and in no full tensor, as the end of a vocabulary that does not divide.
    other_view: shape by which regions are counted, if it is not `shape`.
    """

    shape: Shape
    segments: tuple[Segment, ...]
    padding: tuple[Region, ...] = ()
    other_view: Shape | None = None

    @property
    def view(self) -> Shape:
        return self.shape if self.other_view is None else self.other_view


@dataclass(frozen=True)
class Placement:
    """A full tensor and the shard of it that each rank holds, None for ranks without one."""

    name: str
    shape: Shape
    shards: tuple[Shard | None, ...]

    @property
    def ranks(self) -> tuple[tuple[Segment, ...], ...]:
        return tuple(shard.segments if shard else () for shard in self.shards)

    @property
    def holders(self) -> tuple[int, ...]:
        return tuple(rank for rank, shard in enumerate(self.shards) if shard is not None)


Placements = Mapping[str, Placement]


def joined_segments(segments: list[Segment]) -> tuple[Segment, ...]:
    return tuple(Segment(*pair) for pair in merged((segment.local, segment.whole) for segment in segments))


def single_segment(shape: Shape, whole: Region) -> Shard:
    """Makes a shard of one region."""
    return Shard(shape, (Segment(full_region(shape), whole),) if volume(whole) else ())


def whole_placements(shapes: Mapping[str, Shape]) -> dict[str, Placement]:
    """Makes placements of whole tensors on one rank, as in a full checkpoint."""
    return {
        name: Placement(name, shape, (single_segment(shape, full_region(shape)),))
        for name, shape in shapes.items()
    }


@dataclass(frozen=True)
class StoredShard:
    """A tensor in a rank's file. tensors: names of the full tensors, by the index that segments have."""

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
        return replace(self, tensors=tuple(names[name] for name in self.tensors))


class Location(NamedTuple):
    """Location of a full tensor's region: a segment of the tensor of this name in a rank's file."""

    rank: int
    name: str
    segment: Segment


@dataclass(frozen=True)
class RankFiles:
    """The full shape of every tensor, and the tensors of each rank's file, by the file's names.

    is_renamed: True if names or forms in the files differ from those of the full tensors.
    """

    shapes: Mapping[str, Shape]
    ranks: tuple[Mapping[str, StoredShard], ...]
    is_renamed: bool = False

    def locations(self) -> Iterator[tuple[str, Location]]:
        """Yields every segment of every rank, with the name of its full tensor."""
        for rank, tensors in enumerate(self.ranks):
            for name, stored in tensors.items():
                for tensor, segment in stored.segments:
                    yield tensor, Location(rank, name, segment)

    def stored_shapes(self, rank: int) -> dict[str, Shape]:
        return {name: stored.shard.shape for name, stored in self.ranks[rank].items()}

    def stored_names(self) -> dict[str, tuple[str, ...]]:
        """Lists the stored tensors with parts of a full tensor, by its name, in the order of the ranks."""
        stored_names: dict[str, dict[str, None]] = {name: {} for name in self.shapes}
        for tensor, location in self.locations():
            stored_names[tensor][location.name] = None
        return {name: tuple(stored) or (name,) for name, stored in stored_names.items()}


def as_rank_files(placements: Placements, num_ranks: int) -> RankFiles:
    """Describes files that hold the shards of placements under the same names."""
    ranks: list[dict[str, StoredShard]] = [{} for _ in range(num_ranks)]
    for name, placement in placements.items():
        for tensors, shard in zip(ranks, placement.shards, strict=True):
            if shard is not None:
                tensors[name] = StoredShard((name,), shard)
    return RankFiles({name: placement.shape for name, placement in placements.items()}, tuple(ranks))
