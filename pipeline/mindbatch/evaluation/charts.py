"""The plots of the page as inline SVG with text alternatives: coordinates of everything on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from mindbatch.evaluation.axis import axis_for
from mindbatch.evaluation.labels import Box, place_labels
from mindbatch.evaluation.measures import Measure
from mindbatch.evaluation.rendering import rendered

WIDTH, NAMES, VALUES = 340, 122, 58
"""Widths in a ranking: all of it, the column of names, the column of values."""
ROW, FOOT, MARGIN = 22, 20, 8
"""Height of a row and of the line below all of them; what is left free at both ends of the scale."""
LONGEST_NAME = 15
PLOT_WIDTH, PLOT_HEIGHT = 400, 310


@dataclass(frozen=True)
class Ranked:
    """One strategy in a ranking. interval: between which its value may lie; leads: nobody is ahead of it."""

    name: str
    value: float | None
    interval: tuple[float, float] | None = None
    leads: bool = False

    @property
    def is_known(self) -> bool:
        """True if there is a value to be drawn."""
        return self.value is not None and math.isfinite(self.value)


def ranking(measure: Measure, strategies: Sequence[Ranked]) -> Markup:
    """A point on a scale for each strategy, the best at the top and towards the right, with its interval.

    A value that is None or not finite has no point, and stands below the others.
    """
    sign = -1.0 if measure.best == "low" else 1.0
    known = [each for each in strategies if each.is_known]
    ordered = sorted(known, key=lambda each: -sign * (each.value or 0.0))
    ordered += [each for each in strategies if not each.is_known]
    ends = [end for each in known for end in (each.value, *(each.interval or ())) if end is not None]
    low, high = min(ends, default=0.0), max(ends, default=0.0)
    left, right = NAMES + MARGIN, WIDTH - VALUES - MARGIN

    def place(value: float) -> float:
        share = (value - low) / (high - low) if high > low else 0.5
        return left + (share if sign > 0 else 1 - share) * (right - left)

    said = ", ".join(f"{each.name} {measure.written(each.value)}" for each in ordered)
    return rendered(
        "ranking.svg.j2",
        id=f"ranking-{measure.field}",
        title=measure.title,
        description=f"Best first; to the right is {measure.toward}. {said}",
        width=WIDTH,
        height=len(ordered) * ROW + FOOT,
        names=NAMES,
        values=VALUES,
        right=right,
        toward=measure.toward,
        rows=[_row(position * ROW, measure, each, place) for position, each in enumerate(ordered)],
    )


def _row(top: int, measure: Measure, each: Ranked, place: Callable[[float], float]) -> dict[str, object]:
    """A row of a ranking."""
    number, span = measure.written(each.value), ""
    if each.interval is not None:
        low, high = map(measure.written, each.interval)
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


def scatter(
    identity: str,
    title: str,
    names: Sequence[str],
    points: Sequence[tuple[float, float]],
    axis_names: tuple[str, str],
) -> Markup:
    """A named point for each strategy; x is above 0 and turns logarithmic when it spans a lot."""
    frame = Box(56, 10, PLOT_WIDTH - 10, PLOT_HEIGHT - 44)
    across = axis_for([x for x, _ in points], frame.left, frame.right, logarithmic=True)
    upwards = axis_for([y for _, y in points], frame.bottom, frame.top)
    places = [(across.place(x), upwards.place(y)) for x, y in points]
    short = [_short(name) for name in names]
    said = "; ".join(f"{name}: {x:.3g}, {y:.3g}" for name, (x, y) in zip(names, points, strict=True))
    return rendered(
        "scatter.svg.j2",
        id=identity,
        title=title,
        description=f"{axis_names[0]} across, {axis_names[1]} upwards. {said}",
        width=PLOT_WIDTH,
        height=PLOT_HEIGHT,
        frame=frame,
        across=across,
        upwards=upwards,
        axis_names=axis_names,
        points=[
            {"x": x, "y": y, "name": name, "label": label}
            for (x, y), name, label in zip(places, short, place_labels(places, short, frame), strict=True)
        ],
    )


def _short(name: str) -> str:
    """Its beginning and its end, where names that begin alike differ."""
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[1 - half :]}"
