"""Placing of names beside the points of a plot so that they do not cover each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

LETTER, HEIGHT, GAP = 6.6, 13.0, 8.0
"""Width and height of a letter, and the distance of a name from its point, in the plot's units."""

FARTHEST = 8
"""Rows that a name may stand above or below its point."""

Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True)
class Box:
    """A rectangle; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """True if the two have an area in common."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def within(self, other: Box) -> bool:
        """True if all of it lies in `other`."""
        across = other.left <= self.left and self.right <= other.right
        return across and other.top <= self.top and self.bottom <= other.bottom


@dataclass(frozen=True)
class Label:
    """A name at (x, y), the middle of its height; `anchor` says which part of it is at x."""

    x: float
    y: float
    anchor: Anchor
    box: Box


def place_labels(points: Sequence[tuple[float, float]], names: Sequence[str], frame: Box) -> list[Label]:
    """A place for each name within `frame`: the nearest to its point that is free, or else the freest."""
    taken = [Box(x - 5, y - 5, x + 5, y + 5) for x, y in points]
    labels = []
    for (x, y), name in zip(points, names, strict=True):
        tried = list(_places(x, y, LETTER * len(name)))
        inside = [label for label in tried if label.box.within(frame)]
        chosen = min(inside or tried, key=lambda label: sum(label.box.meets(box) for box in taken))
        taken.append(chosen.box)
        labels.append(chosen)
    return labels


def _places(x: float, y: float, width: float) -> Iterator[Label]:
    """Right, left, above and below the point, then the same farther up and down."""
    for shift in sorted((row * HEIGHT for row in range(-FARTHEST, FARTHEST + 1)), key=abs):
        top, bottom = y + shift - HEIGHT / 2, y + shift + HEIGHT / 2
        yield Label(x + GAP, y + shift, "start", Box(x + GAP, top, x + GAP + width, bottom))
        yield Label(x - GAP, y + shift, "end", Box(x - GAP - width, top, x - GAP, bottom))
        if shift:
            yield Label(x, y + shift, "middle", Box(x - width / 2, top, x + width / 2, bottom))
