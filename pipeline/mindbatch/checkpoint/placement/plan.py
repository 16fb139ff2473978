"""Plans a reshard: the copies between regions of stored tensors that make every target rank's file."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from mindbatch.checkpoint.error_lines import MAX_LINES, did_you_mean, raise_if_any, shown
from mindbatch.checkpoint.placement.regions import (
    Location,
    Pair,
    RankFiles,
    Region,
    Segment,
    Shape,
    Shard,
    StoredShard,
    difference,
    intersection,
    merged,
    rows_of,
)


class Copy(NamedTuple):
    """A region of a tensor in a source rank's file that becomes a region of a target rank's tensor.

    Regions are counted in the views of the two tensors. transposed: True if the target gets the transpose.
    """

    source_rank: int
    source_name: str
    source: Region
    target: Region
    transposed: bool = False

    @property
    def source_tensor(self) -> tuple[int, str]:
        return self.source_rank, self.source_name

    @property
    def source_rows(self) -> tuple[int, int]:
        return rows_of(self.source)

    @property
    def target_rows(self) -> tuple[int, int]:
        return rows_of(self.target)


@dataclass(frozen=True)
class TensorPlan:
    """Plan of one tensor in the file of a target rank.

    shape, view: see Shard. copies: in the order of their targets. padding: regions that are zero.
    """

    name: str
    rank: int
    shape: Shape
    view: Shape
    copies: tuple[Copy, ...]
    padding: tuple[Region, ...] = ()


def plan_copies(source: RankFiles, target: RankFiles) -> list[TensorPlan]:
    """Plans every tensor of every target rank: rank by rank for renamed files, else tensor by tensor.

    Where several source ranks hold an element, the lowest is read. Nothing is proved here.

    Raises:
        CheckpointError: the two do not have the same full tensors; lists where.
    """
    raise_if_any([*_name_errors(source, target), *_shape_errors(source, target)])
    is_renamed = source.is_renamed or target.is_renamed
    locations = first_locations(source)
    # Of renamed files sections stay apart; of others copies are joined to as few as may be.
    copies_of = partial(_copies, locations) if is_renamed else _joined_copies(locations)
    plans = [
        TensorPlan(name, rank, stored.shard.shape, stored.shard.view, copies_of(stored), stored.shard.padding)
        for rank, tensors in enumerate(target.ranks)
        for name, stored in tensors.items()
    ]
    if not is_renamed:
        index_of = {name: index for index, name in enumerate(target.shapes)}
        plans.sort(key=lambda plan: index_of[plan.name])
    return plans


def plan_digest(plans: Iterable[TensorPlan]) -> str:
    """The hex SHA-256 of all copies, which identifies a reshard that was begun before."""
    digest = hashlib.sha256()
    for plan in plans:
        digest.update(json.dumps([plan.name, plan.rank, plan.shape, plan.view, plan.copies]).encode())
    return digest.hexdigest()


Locations = Mapping[str, Mapping[Region, Location]]


def _copies(locations: Locations, wanted: StoredShard) -> tuple[Copy, ...]:
    """Finds the copies that make a stored tensor, in the order of their targets."""
    copies = (
        copy
        for tensor, segment in wanted.segments
        for copy in _sources_of(segment, locations[tensor].values())
    )
    return tuple(sorted(copies, key=attrgetter("target")))


def _joined_copies(locations: Locations) -> Callable[[StoredShard], tuple[Copy, ...]]:
    """Finds copies for files with the names of the full tensors.

    The layers of a model are all cut alike, so that the copies are found for one of them.
    """
    numbers: dict[object, int] = {}  # of what the locations of a tensor have in common with others'
    alike: dict[str, int] = {}
    for tensor, stored in locations.items():
        key = tuple((location.rank, location.segment) for location in stored.values())
        alike[tensor] = numbers.setdefault(key, len(numbers))
    known: dict[tuple[Shard, int], list[Copy]] = {}

    def copies_of(wanted: StoredShard) -> tuple[Copy, ...]:
        [name] = wanted.tensors
        key = wanted.shard, alike[name]
        if key not in known:
            known[key] = sorted(_joined(_copies(locations, wanted)), key=attrgetter("target"))
        return tuple(Copy(copy.source_rank, name, copy.source, copy.target) for copy in known[key])

    return copies_of


def first_locations(files: RankFiles) -> dict[str, dict[Region, Location]]:
    """Locates each region of each full tensor on the lowest rank that has it."""
    locations: dict[str, dict[Region, Location]] = {name: {} for name in files.shapes}
    for tensor, location in files.locations():
        locations[tensor].setdefault(location.segment.whole, location)
    return locations


def _sources_of(wanted: Segment, locations: Iterable[Location]) -> Iterator[Copy]:
    """Finds copies of disjoint regions that cover as much of the segment as is stored."""
    rest = [wanted.whole]
    for rank, name, stored in locations:
        remaining: list[Region] = []
        for region in rest:
            if (common := intersection(region, stored.whole)) is None:
                remaining.append(region)
                continue
            transposed = stored.transposed != wanted.transposed
            yield Copy(rank, name, stored.local_at(common), wanted.local_at(common), transposed)
            remaining += difference(region, common)
        rest = remaining
        if not rest:
            return


def _joined(copies: Iterable[Copy]) -> Iterator[Copy]:
    """Joins adjacent copies of each source tensor."""
    pairs: dict[tuple[int, str], list[Pair]] = {}
    for copy in copies:
        pairs.setdefault(copy.source_tensor, []).append((copy.source, copy.target))
    for (rank, name), regions in pairs.items():
        yield from (Copy(rank, name, *pair) for pair in merged(regions))


def _name_errors(source: RankFiles, target: RankFiles) -> Iterator[str]:
    for listed, name in enumerate(name for name in target.shapes if name not in source.shapes):
        near = did_you_mean(name, source.shapes) if listed < MAX_LINES else ""
        yield f"tensor {shown(name)}: not in the source{near}"
    for listed, name in enumerate(name for name in source.shapes if name not in target.shapes):
        near = did_you_mean(name, target.shapes) if listed < MAX_LINES else ""
        yield f"tensor {shown(name)}: is not part of the target{near}"


def _shape_errors(source: RankFiles, target: RankFiles) -> Iterator[str]:
    for name in source.shapes.keys() & target.shapes.keys():
        shape, needed = source.shapes[name], target.shapes[name]
        if shape != needed:
            yield f"tensor {shown(name)}: has shape {[*shape]} in the source, {[*needed]} in the target"
