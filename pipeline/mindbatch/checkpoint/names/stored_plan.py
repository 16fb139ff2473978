"""A reshard plan, which speaks of Hugging Face names, told in the names and forms of the files themselves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.names.correspondence import Correspondence, Link
from mindbatch.checkpoint.placement.plan import ReshardPlan, TensorPlan
from mindbatch.checkpoint.placement.regions import (
    Region,
    Shape,
    first_overlap,
    full_region,
    intersection,
    is_inside,
    moved,
    region_shape,
    shown_region,
    uncovered,
    volume,
)


class StoredCopy(NamedTuple):
    """A box of a tensor in a source rank's file that becomes a box of a tensor in a target rank's file.

    Boxes are counted in the views of the two tensors. transposed: the elements are put there transposed, so
    the boxes have the same sizes the other way round.
    """

    source_rank: int
    source_name: str
    source: Region
    target: Region
    transposed: bool = False


@dataclass(frozen=True)
class StoredPlan:
    """How a tensor in the file of a target rank is made.

    view: the shape by which boxes in it are counted; its bytes are those of `shape`.
    """

    name: str
    rank: int
    shape: Shape
    view: Shape
    copies: tuple[StoredCopy, ...]
    padding: tuple[Region, ...] = ()


RankNames = Sequence[Correspondence | None]
"""For each rank the names in its file, None where they are Hugging Face's."""


def stored_plans(plan: ReshardPlan, source: RankNames, target: RankNames) -> list[StoredPlan]:
    """The plan in the names of the files: of every target rank, each tensor once.

    Raises:
        CheckpointError: names that do not hold all elements of the plan's tensors, each once.
    """
    if not any((*source, *target)):
        return unnamed_plans(plan)
    for names in {id(each): each for each in (*source, *target)}.values():  # ranks share them
        raise_if_any([] if names is None else correspondence_faults(names))
    by_rank: dict[int, dict[str, TensorPlan]] = {}
    for tensor in plan.tensors:
        by_rank.setdefault(tensor.rank, {})[tensor.name] = tensor
    sources = [None if names is None else _by_original(names.links) for names in source]
    found: list[StoredPlan] = []
    for rank, tensors in sorted(by_rank.items()):
        found += _of_rank(rank, tensors, sources, target[rank])
    return found


def unnamed_plans(plan: ReshardPlan) -> list[StoredPlan]:
    """The same where all files have the names of the plan."""
    return [
        StoredPlan(
            tensor.name,
            tensor.rank,
            tensor.shape,
            tensor.shape,
            tuple(StoredCopy(copy.source_rank, tensor.name, *copy[1:]) for copy in tensor.copies),
            tensor.padding,
        )
        for tensor in plan.tensors
    ]


def plan_digest(plans: Iterable[StoredPlan]) -> str:
    """The hex SHA-256 of all copies."""
    digest = hashlib.sha256()
    for plan in plans:
        digest.update(json.dumps([plan.name, plan.rank, plan.shape, plan.view, plan.copies]).encode())
    return digest.hexdigest()


def correspondence_faults(names: Correspondence) -> list[str]:
    """Whether the links hold every element of both sides once."""
    originals: dict[str, list[Region]] = {name: [] for name in names.originals}
    stored: dict[str, list[Region]] = {name: [] for name in names.stored}
    faults: list[str] = []
    for link in names.links:
        sizes = region_shape(link.place)
        if (sizes[::-1] if link.transposed else sizes) != region_shape(link.box):
            faults.append(f"tensor {shown(link.stored)}: {shown_region(link.place)} has other sizes")
        originals[link.original].append(link.box)
        stored[link.stored].append(link.place)
    for name, boxes in originals.items():
        faults += _tiling_faults(name, names.originals[name], boxes)
    for name, boxes in stored.items():
        faults += _tiling_faults(name, names.view(name), boxes)
    return faults


def _tiling_faults(name: str, shape: Shape, boxes: Sequence[Region]) -> Iterator[str]:
    for box in boxes:
        if not is_inside(box, full_region(shape)):
            yield f"tensor {shown(name)}: {shown_region(box)} is outside {[*shape]}"
            return
    if (twice := first_overlap(boxes)) is not None:
        yield f"tensor {shown(name)}: {shown_region(twice)} is there twice"
    elif sum(map(volume, boxes)) != volume(full_region(shape)):
        lost = uncovered(full_region(shape), boxes)[0]
        yield f"tensor {shown(name)}: {shown_region(lost)} is in no tensor of the other names"


Links = Mapping[str, list[Link]]


def _by_original(links: Iterable[Link]) -> Links:
    found: dict[str, list[Link]] = {}
    for link in links:
        found.setdefault(link.original, []).append(link)
    return found


def _of_rank(
    rank: int,
    tensors: Mapping[str, TensorPlan],
    sources: Sequence[Links | None],
    names: Correspondence | None,
) -> Iterator[StoredPlan]:
    if names is None:
        links = [unchanged(tensor.name, tensor.shape) for tensor in tensors.values()]
        shapes = {tensor.name: (tensor.shape, tensor.shape) for tensor in tensors.values()}
    else:
        links = list(names.links)
        shapes = {name: (shape, names.view(name)) for name, shape in names.stored.items()}
    raise_if_any(
        [f"tensor {shown(link.original)}: target rank {rank} has no such tensor"
         for link in links if link.original not in tensors]
    )  # fmt: skip
    copies: dict[str, list[StoredCopy]] = {name: [] for name in shapes}
    padding: dict[str, list[Region]] = {name: [] for name in shapes}
    for link in links:
        tensor = tensors[link.original]
        copies[link.stored] += _copies(tensor, link, sources)
        padding[link.stored] += [
            placed(common, link) for box in tensor.padding if (common := intersection(box, link.box))
        ]
    for name, (shape, view) in shapes.items():
        ordered = sorted(copies[name], key=lambda copy: copy.target)
        yield StoredPlan(name, rank, shape, view, tuple(ordered), tuple(padding[name]))


def _copies(tensor: TensorPlan, link: Link, sources: Sequence[Links | None]) -> Iterator[StoredCopy]:
    """The copies of the plan that fill the link's box, each cut up by the names of its source."""
    for copy in tensor.copies:
        wanted = intersection(copy.target, link.box)
        if wanted is None:
            continue
        read = moved(wanted, copy.target, copy.source)
        held = sources[copy.source_rank]
        origins = (
            held[tensor.name] if held is not None else [Link(tensor.name, read, tensor.name, read, False)]
        )
        for origin in origins:
            if (common := intersection(read, origin.box)) is None:
                continue
            target = moved(common, copy.source, copy.target)
            transposed = origin.transposed != link.transposed
            yield StoredCopy(
                copy.source_rank, origin.stored, placed(common, origin), placed(target, link), transposed
            )


def placed(box: Region, link: Link) -> Region:
    """Where a part of the link's box is in the file's tensor."""
    if link.transposed:
        return moved(box[::-1], link.box[::-1], link.place)
    return moved(box, link.box, link.place)


def unchanged(name: str, shape: Shape) -> Link:
    """A tensor that has the same name and form on both sides."""
    return Link(name, full_region(shape), name, full_region(shape), False)
