"""Ranks whose files have other names than the placements of their tensors: what is where in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mindbatch.checkpoint.names.correspondence import Correspondence, Link, to_mindformers
from mindbatch.checkpoint.names.dialect import Dialect, Heads
from mindbatch.checkpoint.names.stored_plan import RankNames, placed, unchanged
from mindbatch.checkpoint.placement.placement import Placements
from mindbatch.checkpoint.placement.regions import Region, Shape, full_region, intersection, moved


class Held(NamedTuple):
    """A box of a tensor in a rank's file, in its view, and the box of the full Hugging Face tensor in it.

    transposed: the first box has its dimensions, and its elements, the other way round.
    """

    place: Region
    original: str
    whole: Region
    transposed: bool


@dataclass(frozen=True)
class NamedRanks:
    """Where tensors are over ranks, by their Hugging Face names, and what each rank's file calls them.

    names: for each rank, None where its file has the names of the placements.
    """

    placements: Placements
    names: RankNames

    def local_shapes(self, rank: int) -> dict[str, Shape]:
        """The shapes of a rank's tensors, by the names of the placements."""
        return local_shapes(self.placements, rank)

    def stored_shapes(self, rank: int) -> dict[str, Shape]:
        """The shapes of the tensors in a rank's file."""
        names = self.names[rank]
        return self.local_shapes(rank) if names is None else dict(names.stored)

    def views(self, rank: int) -> Mapping[str, Shape]:
        """The shapes by which boxes of some tensors in a rank's file are counted."""
        names = self.names[rank]
        return {} if names is None else names.views

    def links(self, rank: int) -> tuple[Link, ...]:
        """Which elements of a rank's tensors are where in its file."""
        names = self.names[rank]
        if names is not None:
            return names.links
        return tuple(unchanged(name, shape) for name, shape in self.local_shapes(rank).items())

    def held(self, rank: int) -> dict[str, list[Held]]:
        """What each tensor in a rank's file holds; the rest of it is padding."""
        found: dict[str, list[Held]] = {name: [] for name in self.stored_shapes(rank)}
        for link in self.links(rank):
            shard = self.placements[link.original].shards[rank]
            for local, whole in shard.segments if shard else ():
                if (common := intersection(local, link.box)) is not None:
                    found[link.stored].append(
                        Held(
                            placed(common, link), link.original, moved(common, local, whole), link.transposed
                        )
                    )
        return found


def local_shapes(placements: Placements, rank: int) -> dict[str, Shape]:
    """The shapes of the tensors that a rank holds."""
    shapes = ((name, placement.local_shape(rank)) for name, placement in placements.items())
    return {name: shape for name, shape in shapes if shape is not None}


def as_mindformers(dialect: Dialect, heads: Heads, placements: Placements, num_ranks: int) -> NamedRanks:
    """Ranks that hold these placements under MindFormers' names, each fused from what it has itself.

    CheckpointError lists names that have no rule, and parts of a fused tensor that do not fit.
    """
    known: dict[object, Correspondence] = {}  # the ranks of a stage are alike
    names = []
    for rank in range(num_ranks):
        shapes = local_shapes(placements, rank)
        key = tuple(shapes.items())
        if key not in known:
            known[key] = to_mindformers(dialect, shapes, heads)
        names.append(known[key])
    return NamedRanks(placements, tuple(names))


def as_renamed(stored: Mapping[str, str], placements: Placements, num_ranks: int) -> NamedRanks:
    """Ranks whose tensors have other names and no other forms. stored: those, by the placements' names."""
    names = []
    for rank in range(num_ranks):
        shapes = local_shapes(placements, rank)
        links = (Link(name, full_region(shape), stored[name], full_region(shape), False)
                 for name, shape in shapes.items())  # fmt: skip
        renamed = {stored[name]: shape for name, shape in shapes.items()}
        names.append(Correspondence(shapes, renamed, {}, tuple(links)))
    return NamedRanks(placements, tuple(names))


def as_placed(placements: Placements, num_ranks: int) -> NamedRanks:
    """Ranks whose files have the names of the placements."""
    return NamedRanks(placements, (None,) * num_ranks)
