"""Boxes of tensor elements: a half-open range for each dimension, in exact integers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

Shape = tuple[int, ...]
Region = tuple[tuple[int, int], ...]
"""(start, stop) for each dimension; () is the one element of a scalar."""
Pair = tuple[Region, Region]
"""The same elements in two systems of coordinates: boxes of the same sizes."""


def full_region(shape: Shape) -> Region:
    """All elements of a tensor."""
    return tuple((0, size) for size in shape)


def region_shape(box: Region) -> Shape:
    """Its sizes."""
    return tuple(stop - start for start, stop in box)


def volume(box: Region) -> int:
    """Elements of it."""
    return math.prod(stop - start for start, stop in box)


def intersection(one: Region, other: Region) -> Region | None:
    """What is in both, or None when that is nothing."""
    common = tuple(
        (max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True)
    )  # fmt: skip
    return common if all(start < stop for start, stop in common) else None


def is_inside(inner: Region, outer: Region) -> bool:
    """Whether every element of `inner` is in `outer`; a box of other dimensions is not."""
    return len(inner) == len(outer) and all(
        c <= a <= b <= d for (a, b), (c, d) in zip(inner, outer, strict=True)
    )


def moved(box: Region, origin: Region, target: Region) -> Region:
    """`box`, given where `origin` is, where the pair of `origin` is: it keeps its place within `origin`."""
    return tuple(
        (start - old + new, stop - old + new)
        for (start, stop), (old, _), (new, _) in zip(box, origin, target, strict=True)
    )


def oriented(region: Region, transposed: bool) -> Region:
    """The region with its dimensions the other way round, where that is so."""
    return region[::-1] if transposed else region


def rows_of(region: Region) -> tuple[int, int]:
    """Its range in the first dimension; a scalar is one row."""
    return region[0] if region else (0, 1)


def difference(box: Region, hole: Region) -> list[Region]:
    """Disjoint boxes that together are `box` without `hole`."""
    common = intersection(box, hole)
    if common is None:
        return [box]
    rest: list[Region] = []
    for dimension, ((start, stop), (low, high)) in enumerate(zip(box, common, strict=True)):
        for side in ((start, low), (high, stop)):
            if side[0] < side[1]:
                rest.append((*common[:dimension], side, *box[dimension + 1 :]))
    return rest


def uncovered(box: Region, covers: Iterable[Region]) -> list[Region]:
    """Disjoint boxes of the elements of `box` that are in none of `covers`."""
    rest = [box] if volume(box) else []
    for cover in covers:
        if not rest:
            break
        rest = [left for each in rest for left in difference(each, cover)]
    return rest


def first_overlap(boxes: Sequence[Region]) -> Region | None:
    """Some elements that are in two of the boxes, or None. Empty boxes overlap nothing.

    They are swept along the dimension in which most of them start apart.
    """
    boxes = [box for box in boxes if volume(box)]
    if len(boxes) < 2:
        return None
    if not boxes[0]:
        return ()
    along = max(range(len(boxes[0])), key=lambda dimension: len({box[dimension][0] for box in boxes}))
    open_boxes: list[Region] = []
    for box in sorted(boxes, key=lambda each: each[along]):
        open_boxes = [each for each in open_boxes if each[along][1] > box[along][0]]
        for each in open_boxes:
            if (common := intersection(each, box)) is not None:
                return common
        open_boxes.append(box)
    return None


def merged(pairs: Iterable[Pair]) -> list[Pair]:
    """The pairs, joined where they touch on both sides alike, in order of their second boxes.

    The boxes of each side must be disjoint.
    """
    found = list(pairs)
    count = 0
    while count != len(found):
        count = len(found)
        for dimension in reversed(range(len(found[0][0]) if found else 0)):
            found = _merged_along(found, dimension)
    return sorted(found, key=lambda pair: pair[1])


def _merged_along(pairs: Iterable[Pair], dimension: int) -> list[Pair]:
    """Joins pairs that differ in this dimension alone and touch there."""
    joined: list[Pair] = []
    for pair in sorted(pairs, key=lambda each: (*_without(each, dimension), each[0][dimension])):
        last = joined[-1] if joined else None
        if last and _without(last, dimension) == _without(pair, dimension) and _touch(last, pair, dimension):
            first, second = (_extended(last[side], pair[side], dimension) for side in (0, 1))
            joined[-1] = (first, second)
        else:
            joined.append(pair)
    return joined


def _without(pair: Pair, dimension: int) -> tuple[Region, Region]:
    first, second = (box[:dimension] + box[dimension + 1 :] for box in pair)
    return first, second


def _touch(one: Pair, other: Pair, dimension: int) -> bool:
    return all(a[dimension][1] == b[dimension][0] for a, b in zip(one, other, strict=True))


def _extended(box: Region, by: Region, dimension: int) -> Region:
    return (*box[:dimension], (box[dimension][0], by[dimension][1]), *box[dimension + 1 :])


def shown_region(box: Region) -> str:
    """As it is written in Python: [0:4, 8:16]."""
    return f"[{', '.join(f'{start}:{stop}' for start, stop in box)}]"
