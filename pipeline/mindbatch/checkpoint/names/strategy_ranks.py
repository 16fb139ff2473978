"""Ranks that a MindSpore strategy has cut under MindFormers' names, told under Hugging Face names.

What a rank holds of a Hugging Face tensor is seen as a tensor of its own: its boxes one after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mindbatch.checkpoint.faults import collecting, raise_if_any, shown
from mindbatch.checkpoint.names.correspondence import Correspondence, Link, to_huggingface, unused_names
from mindbatch.checkpoint.names.dialect import Dialect, Heads
from mindbatch.checkpoint.names.named_ranks import NamedRanks
from mindbatch.checkpoint.placement.placement import (
    Placement,
    Placements,
    Segment,
    Shard,
    joined_segments,
)
from mindbatch.checkpoint.placement.regions import (
    Region,
    Shape,
    full_region,
    intersection,
    moved,
    region_shape,
    shown_region,
)
from mindbatch.errors import CheckpointError


class _Found(NamedTuple):
    """A box of a full Hugging Face tensor, and where it is in the file of a rank."""

    whole: Region
    stored: str
    place: Region
    transposed: bool


def as_cut(dialect: Dialect, heads: Heads, stored: Placements, num_ranks: int) -> NamedRanks:
    """The ranks of a strategy. stored: the placements that it gives, by MindFormers' names.

    Raises:
        CheckpointError: names that have no rule, or a cut that takes a fused tensor apart so that what a rank
            has of it is no tensor of the other names.
    """
    unused = unused_names(dialect, stored)
    stored = {name: placement for name, placement in stored.items() if name not in unused}
    whole = to_huggingface(dialect, {name: placement.shape for name, placement in stored.items()}, heads)
    links: dict[str, list[Link]] = {}
    for link in whole.links:
        links.setdefault(link.stored, []).append(link)
    faults: list[str] = []
    names: list[Correspondence] = []
    shards: list[dict[str, Shard]] = []
    for rank in range(num_ranks):
        with collecting(faults):
            held, correspondence = _rank(rank, stored, whole, links)
            shards.append(held)
            names.append(correspondence)
    raise_if_any(faults)
    placements = {
        name: Placement(name, shape, tuple(held.get(name) for held in shards))
        for name, shape in whole.originals.items()
    }
    return NamedRanks(placements, tuple(names))


def _rank(
    rank: int, stored: Placements, whole: Correspondence, links: Mapping[str, Sequence[Link]]
) -> tuple[dict[str, Shard], Correspondence]:
    """What a rank holds under Hugging Face names, and where that is in its file."""
    shapes: dict[str, Shape] = {}
    views: dict[str, Shape] = {}
    found: dict[str, list[_Found]] = {}
    for name, placement in stored.items():
        shard = placement.shards[rank]
        if shard is None:
            continue
        shapes[name] = shard.shape
        for local, full in shard.segments:
            view = whole.view(name)
            if view != placement.shape:
                local, full = (_viewed(box, placement.shape, view, name, rank) for box in (local, full))
                views[name] = tuple(stop for _, stop in local)
            for link in links[name]:
                if (common := intersection(full, link.place)) is not None:
                    box = _unplaced(common, link)
                    place = moved(common, full, local)
                    found.setdefault(link.original, []).append(_Found(box, name, place, link.transposed))
    shards: dict[str, Shard] = {}
    own: list[Link] = []
    for original, parts in found.items():
        shards[original], its = _stacked(original, parts, rank)
        own += its
    originals = {name: shard.shape for name, shard in shards.items()}
    return shards, Correspondence(originals, shapes, views, tuple(own))


def _stacked(original: str, parts: Sequence[_Found], rank: int) -> tuple[Shard, list[Link]]:
    """The boxes that a rank has of a tensor as one tensor, side by side in the dimension they differ in."""
    sizes = [region_shape(part.whole) for part in parts]
    along = [
        axis for axis in range(len(sizes[0])) if len({part.whole[axis] for part in parts}) > 1
    ] or [0]  # fmt: skip
    if len(along) > 1:
        raise CheckpointError(
            f"tensor {shown(original)}: what rank {rank} has of it by the strategy is in boxes that are no "
            f"tensor together; cannot be told in Hugging Face names"
        )
    axis, end = along[0], 0
    pieces: list[Segment] = []
    links: list[Link] = []
    for part in sorted(parts, key=lambda each: each.whole):
        shape = region_shape(part.whole)
        start, end = end, end + (shape[axis] if shape else 0)
        local = full_region(shape)
        local = (*local[:axis], (start, end), *local[axis + 1 :]) if shape else local
        pieces.append(Segment(local, part.whole))
        links.append(Link(original, local, part.stored, part.place, part.transposed))
    whole_shape = (*sizes[0][:axis], end, *sizes[0][axis + 1 :]) if sizes[0] else ()
    return Shard(whole_shape, joined_segments(pieces)), links


def _viewed(box: Region, shape: Shape, view: Shape, name: str, rank: int) -> Region:
    """A box of full rows as the view counts it, in which several rows are one."""
    together = shape[0] // view[0]
    (start, stop), columns = box
    if start % together or stop % together or columns != (0, shape[1]):
        raise CheckpointError(
            f"tensor {shown(name)}: the strategy gives {shown_region(box)} to rank {rank}; {together} full "
            "rows each belong together, so that cannot be told in Hugging Face names"
        )
    return (start // together, stop // together), (0, shape[1] * together)


def _unplaced(box: Region, link: Link) -> Region:
    """Which part of the link's Hugging Face box is at a place of the file's tensor."""
    if link.transposed:
        return moved(box[::-1], link.place[::-1], link.box)
    return moved(box, link.place, link.box)
