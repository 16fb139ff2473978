"""Rank files with MindFormers' names: which region of which Hugging Face tensor is where in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mindbatch.checkpoint.faults import collecting, raise_if_any, shown
from mindbatch.checkpoint.names.correspondence import (
    Correspondence,
    Link,
    to_huggingface,
    to_mindformers,
    unused_names,
)
from mindbatch.checkpoint.names.dialect import Dialect, Heads
from mindbatch.checkpoint.placement.placement import Placement, Placements, Shard
from mindbatch.checkpoint.placement.rank_files import RankFiles, StoredSegment, StoredShard
from mindbatch.checkpoint.placement.regions import (
    Region,
    Shape,
    intersection,
    moved,
    oriented,
    shown_region,
)
from mindbatch.errors import CheckpointError


def as_mindformers(dialect: Dialect, heads: Heads, placements: Placements, num_ranks: int) -> RankFiles:
    """Files that hold these placements under MindFormers' names, each fused from what its rank has itself.

    CheckpointError lists names that have no rule, and parts of a fused tensor that do not fit.
    """
    known: dict[object, Correspondence] = {}  # the ranks of a stage are alike
    ranks: list[dict[str, StoredShard]] = []
    for rank in range(num_ranks):
        shards = {name: placed.shards[rank] for name, placed in placements.items()}
        held = {name: shard for name, shard in shards.items() if shard is not None}
        shapes = {name: shard.shape for name, shard in held.items()}
        key = tuple(shapes.items())
        if key not in known:
            known[key] = to_mindformers(dialect, shapes, heads)
        ranks.append(_renamed(known[key], held))
    shapes = {name: placement.shape for name, placement in placements.items()}
    return RankFiles(shapes, tuple(ranks), is_renamed=True)


def _renamed(names: Correspondence, shards: Mapping[str, Shard]) -> dict[str, StoredShard]:
    """The shards of a rank as its file holds them."""
    segments: dict[str, list[StoredSegment]] = {name: [] for name in names.stored}
    padding: dict[str, list[Region]] = {name: [] for name in names.stored}
    for link in names.links:
        shard = shards[link.original]
        for local, whole in shard.segments:
            if (common := intersection(local, link.box)) is not None:
                full = moved(common, local, whole)
                segments[link.stored].append(
                    StoredSegment(_placed(common, link), link.original, full, link.transposed)
                )
        for region in shard.padding:
            if (common := intersection(region, link.box)) is not None:
                padding[link.stored].append(_placed(common, link))
    return {
        name: StoredShard(shape, names.view(name), tuple(segments[name]), tuple(padding[name]))
        for name, shape in names.stored.items()
    }


def _placed(region: Region, link: Link) -> Region:
    """Where a part of the link's Hugging Face region is in the stored tensor."""
    return moved(oriented(region, link.transposed), oriented(link.box, link.transposed), link.place)


def by_strategy(dialect: Dialect, heads: Heads, stored: Placements, num_ranks: int) -> RankFiles:
    """Files that a MindSpore strategy has cut. stored: the placements it gives, by MindFormers' names.

    Raises:
        CheckpointError: names that have no rule, or a cut through rows of a fused tensor that belong
            together.
    """
    unused = unused_names(dialect, stored)
    stored = {name: placement for name, placement in stored.items() if name not in unused}
    names = to_huggingface(dialect, {name: placement.shape for name, placement in stored.items()}, heads)
    links: dict[str, list[Link]] = {}
    for link in names.links:
        links.setdefault(link.stored, []).append(link)
    faults: list[str] = []
    ranks: list[dict[str, StoredShard]] = []
    for rank in range(num_ranks):
        held: dict[str, StoredShard] = {}
        for name, placement in stored.items():
            if (shard := placement.shards[rank]) is not None:
                with collecting(faults):
                    held[name] = _linked(placement, shard, names.view(name), links[name], rank)
        ranks.append(held)
    raise_if_any(faults)
    return RankFiles(dict(names.originals), tuple(ranks), is_renamed=True)


def _linked(placement: Placement, shard: Shard, view: Shape, links: Sequence[Link], rank: int) -> StoredShard:
    """A shard of a tensor under MindFormers' names, and what it holds under Hugging Face's."""
    own_view, segments = shard.shape, []
    for local, full in shard.segments:
        if view != placement.shape:
            local, full = (_viewed(each, placement, view, rank) for each in (local, full))
            own_view = tuple(stop for _, stop in local)
        for link in links:
            if (common := intersection(full, link.place)) is not None:
                place = oriented(link.place, link.transposed)
                whole = moved(oriented(common, link.transposed), place, link.box)
                segments.append(
                    StoredSegment(moved(common, full, local), link.original, whole, link.transposed)
                )
    return StoredShard(shard.shape, own_view, tuple(segments), shard.padding)


def _viewed(region: Region, placement: Placement, view: Shape, rank: int) -> Region:
    """A region of full rows as the view counts it, in which several rows are one."""
    together = placement.shape[0] // view[0]
    (start, stop), columns = region
    if start % together or stop % together or columns != (0, placement.shape[1]):
        raise CheckpointError(
            f"tensor {shown(placement.name)}: the strategy gives {shown_region(region)} to rank {rank}; "
            f"{together} full rows each belong together, so that cannot be told in Hugging Face names"
        )
    return (start // together, stop // together), (0, placement.shape[1] * together)
