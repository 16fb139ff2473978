"""The ranking of columns by a score, as inline SVG with a text alternative."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from mindbatch.evaluation.rendering import rendered

WIDTH, NAMES, VALUES = 340, 122, 58
"""Widths in a ranking: all of it, the column of names, the column of values."""
ROW, FOOT, MARGIN = 22, 20, 8
"""Height of a row and of the line below all of them; what is left free at both ends of the scale."""
LONGEST_NAME = 15


@dataclass(frozen=True)
class Scale:
    """The scale of a ranking. best: which end is the better one, and toward: what that end means."""

    identity: str
    title: str
    written: Callable[[float | None], str]
    best: Literal["low", "high"] = "high"
    toward: str = "better"


@dataclass(frozen=True)
class Ranked:
    """One column in a ranking. interval: between which its value may lie; leads: nobody is ahead of it."""

    name: str
    value: float | None
    interval: tuple[float, float] | None = None
    leads: bool = False

    @property
    def is_known(self) -> bool:
        """True if there is a value to be drawn."""
        return self.value is not None and math.isfinite(self.value)


def ranking(scale: Scale, columns: Sequence[Ranked]) -> Markup:
    """A point for each column, the best at the top and towards the right, with its interval.

    A value that is None or not finite has no point, and stands below the others.
    """
    sign = -1.0 if scale.best == "low" else 1.0
    known = [each for each in columns if each.is_known]
    ordered = sorted(known, key=lambda each: -sign * (each.value or 0.0))
    ordered += [each for each in columns if not each.is_known]
    ends = [end for each in known for end in (each.value, *(each.interval or ())) if end is not None]
    low, high = min(ends, default=0.0), max(ends, default=0.0)
    left, right = NAMES + MARGIN, WIDTH - VALUES - MARGIN

    def place(value: float) -> float:
        share = (value - low) / (high - low) if high > low else 0.5
        return left + (share if sign > 0 else 1 - share) * (right - left)

    said = ", ".join(f"{each.name} {scale.written(each.value)}" for each in ordered)
    return rendered(
        "ranking.svg.j2",
        id=f"ranking-{scale.identity}",
        title=scale.title,
        description=f"Best first; to the right is {scale.toward}. {said}",
        width=WIDTH,
        height=len(ordered) * ROW + FOOT,
        names=NAMES,
        values=VALUES,
        right=right,
        toward=scale.toward,
        rows=[_row(position * ROW, scale, each, place) for position, each in enumerate(ordered)],
    )


def _row(top: int, scale: Scale, each: Ranked, place: Callable[[float], float]) -> dict[str, object]:
    """A row of a ranking."""
    number, span = scale.written(each.value), ""
    if each.interval is not None:
        low, high = map(scale.written, each.interval)
        span = f" ({low} to {high})"
    return {
        "name": _short(each.name),
        "number": number,
        "hint": f"{each.name}: {number}{span}",
        "middle": top + ROW / 2,
        "point": place(each.value) if each.value is not None and each.is_known else None,
        "interval": sorted(map(place, each.interval)) if each.interval is not None else None,
        "leads": each.leads,
    }


def _short(name: str) -> str:
    """Its beginning and its end, where names that begin alike differ."""
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[1 - half :]}"
