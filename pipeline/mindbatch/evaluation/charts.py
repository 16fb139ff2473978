"""The plots of the page, as inline SVG that says in words what it shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mindbatch.evaluation.axis import Axis, axis_for
from mindbatch.evaluation.labels import Box, place_labels
from mindbatch.evaluation.markup import Markup, element
from mindbatch.evaluation.measures import Measure

WIDTH, NAMES, VALUES = 340, 122, 58
"""Of a ranking: all of it, the column of names, the column of values."""
ROW, FOOT, MARGIN = 22, 20, 8
"""Height of a row and of the line below all of them; what is left free at both ends of the scale."""
LONGEST_NAME = 18
PLOT_WIDTH, PLOT_HEIGHT = 400, 310


@dataclass(frozen=True)
class Ranked:
    """One strategy in a ranking. interval: between which its value may lie; leads: nobody is ahead of it."""

    name: str
    value: float | None
    interval: tuple[float, float] | None = None
    leads: bool = False


def ranking(measure: Measure, strategies: Sequence[Ranked]) -> Markup:
    """A point on a scale for each strategy, the best at the top and towards the right, with its interval.

    A value that is None or not finite has no point, and stands below the others.
    """
    sign = -1.0 if measure.best == "low" else 1.0
    known = [each for each in strategies if each.value is not None and math.isfinite(each.value)]
    ordered = sorted(known, key=lambda each: -sign * (each.value or 0.0))
    ordered += [each for each in strategies if each not in known]
    ends = [end for each in known for end in (each.value, *(each.interval or ())) if end is not None]
    low, high = min(ends, default=0.0), max(ends, default=0.0)
    left, right = NAMES + MARGIN, WIDTH - VALUES - MARGIN

    def place(value: float) -> float:
        share = (value - low) / (high - low) if high > low else 0.5
        return left + (share if sign > 0 else 1 - share) * (right - left)

    rows = [_ranked(position * ROW, measure, each, place) for position, each in enumerate(ordered)]
    foot = len(ordered) * ROW + FOOT - 6
    rows.append(element("text", f"{measure.toward} →", x=right, y=foot, text_anchor="end", class_="axis"))
    said = ", ".join(f"{each.name} {measure.written(each.value)}" for each in ordered)
    described = f"Best first; to the right is {measure.toward}. {said}"
    identity = f"ranking-{measure.field}"
    return _picture(identity, WIDTH, foot + 6, measure.title, described, rows, "ranking")


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
    marks: list[Markup] = [*_grid(across, upwards, frame), *_axis_titles(axis_names, across, frame)]
    for (x, y), name, label in zip(places, short, place_labels(places, short, frame), strict=True):
        if label.y != y:
            ends = {"x1": _at(x), "y1": _at(y), "x2": _at(label.x), "y2": _at(label.y)}
            marks.append(element("line", **ends, class_="leader"))
        marks.append(element("circle", cx=_at(x), cy=_at(y), r=5, class_="point"))
        marks.append(
            element("text", name, x=_at(label.x), y=_at(label.y + 4), text_anchor=label.anchor, class_="name")
        )
    said = "; ".join(f"{name}: {x:.3g}, {y:.3g}" for name, (x, y) in zip(names, points, strict=True))
    described = f"{axis_names[0]} across, {axis_names[1]} upwards. {said}"
    return _picture(identity, PLOT_WIDTH, PLOT_HEIGHT, title, described, marks, "scatter")


def _picture(
    identity: str, width: int, height: int, title: str, said: str, content: Sequence[Markup], kind: str
) -> Markup:
    return element(
        "svg",
        element("title", title, id=f"{identity}-title"),
        element("desc", said, id=f"{identity}-desc"),
        content,
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_labelledby=f"{identity}-title {identity}-desc",
        class_=kind,
    )


def _ranked(top: int, measure: Measure, each: Ranked, place: Callable[[float], float]) -> Markup:
    """A row of a ranking."""
    middle = top + ROW / 2
    number = measure.written(each.value)
    marks: list[Markup] = []
    if each.value is not None and math.isfinite(each.value):
        marks.append(element("line", x1=NAMES, x2=WIDTH - VALUES, y1=middle, y2=middle, class_="grid"))
        if each.interval is not None:
            ends = sorted(map(place, each.interval))
            marks.append(
                element("line", x1=_at(ends[0]), x2=_at(ends[1]), y1=middle, y2=middle, class_="interval")
            )
        kind = "point" if each.leads else "point behind"
        marks.append(element("circle", cx=_at(place(each.value)), cy=middle, r=5, class_=kind))
    return element(
        "g",
        element("title", f"{each.name}: {number}{_between(measure, each)}"),
        element("text", _short(each.name), x=NAMES - 8, y=middle + 4, text_anchor="end", class_="name"),
        marks,
        element("text", number, x=WIDTH, y=middle + 4, text_anchor="end", class_="value"),
    )


def _between(measure: Measure, each: Ranked) -> str:
    if each.interval is None:
        return ""
    low, high = map(measure.written, each.interval)
    return f" ({low} to {high})"


def _grid(across: Axis, upwards: Axis, frame: Box) -> list[Markup]:
    marks = []
    for tick in across.ticks():
        x = _at(across.place(tick))
        marks.append(element("line", x1=x, x2=x, y1=frame.top, y2=frame.bottom, class_="grid"))
        marks.append(element("text", f"{tick:g}", x=x, y=frame.bottom + 16, text_anchor="middle"))
    for tick in upwards.ticks():
        y = _at(upwards.place(tick))
        marks.append(element("line", x1=frame.left, x2=frame.right, y1=y, y2=y, class_="grid"))
        number = f"{round(tick, 6):g}"
        marks.append(
            element("text", number, x=frame.left - 6, y=_at(upwards.place(tick) + 4), text_anchor="end")
        )
    return marks


def _axis_titles(names: tuple[str, str], across: Axis, frame: Box) -> list[Markup]:
    scale = ", logarithmic" if across.logarithmic else ""
    middle = (frame.left + frame.right) / 2
    height = (frame.top + frame.bottom) / 2
    turned = f"rotate(-90 12 {_at(height)})"
    return [
        element(
            "text", f"{names[0]}{scale}", x=middle, y=PLOT_HEIGHT - 8, text_anchor="middle", class_="axis"
        ),
        element("text", names[1], x=12, y=_at(height), text_anchor="middle", transform=turned, class_="axis"),
    ]


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _at(place: float) -> str:
    return f"{place:.1f}"
