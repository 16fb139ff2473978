"""The plots of the page, as inline SVG that says in words what it shows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mindbatch.evaluation.axis import Axis, axis_for
from mindbatch.evaluation.labels import Box, place_labels
from mindbatch.evaluation.markup import Markup, element
from mindbatch.evaluation.measures import Measure

WIDTH, NAMES, VALUES = 340, 122, 58
"""Of a bar chart: all of it, the column of names, the column of values."""
ROW, BAR = 22, 14
LONGEST_NAME = 18
PLOT_WIDTH, PLOT_HEIGHT = 400, 310


def bar_chart(measure: Measure, names: Sequence[str], values: Sequence[float | None]) -> Markup:
    """Horizontal bars from the measure's origin, a row for each name; below the origin they go right, too.

    A value that is None or not finite has no bar.
    """
    sizes = [
        None if value is None or not math.isfinite(value) else abs(value - measure.origin) for value in values
    ]
    largest = max((size for size in sizes if size is not None), default=0.0) or 1.0
    written = [measure.written(value) for value in values]
    rows = [
        _bar(position * ROW, name, number, None if size is None else size / largest)
        for position, (name, number, size) in enumerate(zip(names, written, sizes, strict=True))
    ]
    said = ", ".join(f"{name} {number}" for name, number in zip(names, written, strict=True))
    identity = f"bars-{measure.field}"
    return _picture(identity, WIDTH, len(names) * ROW, measure.title, said, rows, "bars")


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


def _bar(top: int, name: str, number: str, share: float | None) -> Markup:
    """A row of a bar chart; `share` of the longest bar, None for no bar."""
    middle = top + ROW // 2 + 4
    length = (share or 0.0) * (WIDTH - NAMES - VALUES)
    return element(
        "g",
        element("title", f"{name}: {number}"),
        element("text", _short(name), x=NAMES - 8, y=middle, text_anchor="end", class_="name"),
        None if share is None else _rectangle(top + (ROW - BAR) // 2, max(length, 1)),
        element("text", number, x=_at(NAMES + length + 6), y=middle, class_="value"),
    )


def _rectangle(top: int, width: float) -> Markup:
    return element("rect", x=NAMES, y=top, width=_at(width), height=BAR, rx=2, class_="bar")


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
