"""Which boxes of which source ranks make the tensors of each target rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mindbatch.checkpoint.faults import MAX_LINES, did_you_mean, raise_if_any, shown
from mindbatch.checkpoint.placement.placement import Placement, Placements, Segment
from mindbatch.checkpoint.placement.regions import (
    Pair,
    Region,
    Shape,
    difference,
    intersection,
    merged,
    moved,
)


class Copy(NamedTuple):
    """A box of a source rank's tensor that becomes a box, of the same sizes, of a target rank's tensor."""

    source_rank: int
    source: Region
    target: Region


@dataclass(frozen=True)
class TensorPlan:
    """How a tensor of a target rank is made.

    shape: of the rank's tensor. copies: in order of `target`. padding: boxes of it that are zero.
    """

    name: str
    rank: int
    shape: Shape
    copies: tuple[Copy, ...]
    padding: tuple[Region, ...] = ()


@dataclass(frozen=True)
class ReshardPlan:
    """All tensors of all target ranks, tensor by tensor, and the placements that they were made for."""

    tensors: tuple[TensorPlan, ...]
    source: Placements
    target: Placements

    def of_rank(self, rank: int) -> tuple[TensorPlan, ...]:
        """The tensors of one target rank."""
        return tuple(tensor for tensor in self.tensors if tensor.rank == rank)


def plan_reshard(source: Placements, target: Placements) -> ReshardPlan:
    """The plan from one placement of the same tensors to another, with as few copies as may be.

    Where several source ranks hold an element, the lowest is read. Nothing is proved here.

    Raises:
        CheckpointError: the two do not have the same names and shapes; lists where.
    """
    raise_if_any([*_name_faults(source, target), *_shape_faults(source, target)])
    tensors: list[TensorPlan] = []
    known: dict[object, list[tuple[Copy, ...]]] = {}  # the layers of a model are all cut alike
    for name, wanted in target.items():
        key = (source[name].geometry, wanted.geometry)
        if key not in known:
            known[key] = [_copies(source[name], pieces) for pieces in wanted.ranks]
        for rank, (shard, copies) in enumerate(zip(wanted.shards, known[key], strict=True)):
            if shard is not None:
                tensors.append(TensorPlan(name, rank, shard.shape, copies, shard.padding))
    return ReshardPlan(tuple(tensors), source, target)


def _copies(source: Placement, wanted: Iterable[Segment]) -> tuple[Copy, ...]:
    """What makes the pieces of one target rank."""
    pairs: dict[int, list[Pair]] = {}
    for piece in wanted:
        for rank, pair in _sources_of(source, piece):
            pairs.setdefault(rank, []).append(pair)
    copies = [Copy(rank, *pair) for rank, found in pairs.items() for pair in merged(found)]
    return tuple(sorted(copies, key=lambda copy: copy.target))


def _sources_of(source: Placement, wanted: Segment) -> Iterator[tuple[int, Pair]]:
    """(rank, (box there, box here)) of disjoint boxes that make up as much of the piece as there is."""
    rest = [wanted.whole]
    for rank, pieces in enumerate(source.ranks):
        for held in pieces:
            remaining: list[Region] = []
            for box in rest:
                if (common := intersection(box, held.whole)) is not None:
                    there, here = (moved(common, each.whole, each.local) for each in (held, wanted))
                    yield rank, (there, here)
                    remaining += difference(box, common)
                else:
                    remaining.append(box)
            rest = remaining


def _name_faults(source: Placements, target: Placements) -> Iterator[str]:
    for told, name in enumerate(name for name in target if name not in source):
        near = did_you_mean(name, source) if told < MAX_LINES else ""
        yield f"tensor {shown(name)}: not in the source{near}"
    for told, name in enumerate(name for name in source if name not in target):
        near = did_you_mean(name, target) if told < MAX_LINES else ""
        yield f"tensor {shown(name)}: has no place in the target{near}"


def _shape_faults(source: Placements, target: Placements) -> Iterator[str]:
    for name in source.keys() & target.keys():
        found, needed = source[name].shape, target[name].shape
        if found != needed:
            yield f"tensor {shown(name)}: has shape {[*found]} in the source, {[*needed]} in the target"
