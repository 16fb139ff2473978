"""The plots of the page, as inline SVG that says in words what it shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mindbatch.evaluation.axis import Axis, axis_for
from mindbatch.evaluation.labels import Box, place_labels
from mindbatch.evaluation.markup import Markup, element

WIDTH, NAMES, VALUES = 340, 122, 58
"""Of a bar chart: all of it, the column of names, the column of values."""
ROW, BAR = 22, 14
LONGEST_NAME = 18
PLOT_WIDTH, PLOT_HEIGHT = 460, 340

Written = Callable[[float], str]


def bar_chart(
    identity: str, title: str, names: Sequence[str], values: Sequence[float | None], written: Written
) -> Markup:
    """Horizontal bars that begin at 0, a row for each name; of a negative value the bar shows its size.

    identity: unique in the page. A value that is None or not finite has no bar.
    """
    largest = (
        max((abs(value) for value in values if value is not None and math.isfinite(value)), default=0.0)
        or 1.0
    )
    rows = [
        _bar(position * ROW, name, value, largest, written)
        for position, (name, value) in enumerate(zip(names, values, strict=True))
    ]
    said = ", ".join(f"{name} {_words(value, written)}" for name, value in zip(names, values, strict=True))
    return _picture(identity, WIDTH, len(names) * ROW, title, said, rows, "bars")


def scatter(
    identity: str,
    title: str,
    names: Sequence[str],
    points: Sequence[tuple[float, float]],
    axis_names: tuple[str, str],
) -> Markup:
    """A named point for each strategy; x is above 0 and turns logarithmic when it spans a lot."""
    frame = Box(46, 10, PLOT_WIDTH - 10, PLOT_HEIGHT - 44)
    across = axis_for([x for x, _ in points], frame.left, frame.right, logarithmic=True)
    upwards = axis_for([y for _, y in points], frame.bottom, frame.top)
    places = [(across.place(x), upwards.place(y)) for x, y in points]
    short = [_short(name) for name in names]
    marks: list[Markup] = [*_grid(across, upwards, frame), *_axis_titles(axis_names, across, frame)]
    for (x, y), name, label in zip(places, short, place_labels(places, short, frame), strict=True):
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


def _bar(top: int, name: str, value: float | None, largest: float, written: Written) -> Markup:
    middle = top + ROW // 2 + 4
    label = element("text", _short(name), x=NAMES - 8, y=middle, text_anchor="end", class_="name")
    hint = element("title", f"{name}: {_words(value, written)}")
    if value is None or not math.isfinite(value):
        missing = element("text", _words(value, written), x=NAMES + 2, y=middle, class_="missing")
        return element("g", hint, label, missing)
    length = abs(value) / largest * (WIDTH - NAMES - VALUES)
    bar = element(
        "rect", x=NAMES, y=top + (ROW - BAR) // 2, width=_at(max(length, 1)), height=BAR, rx=2, class_="bar"
    )
    number = element("text", written(value), x=_at(NAMES + length + 6), y=middle, class_="value")
    return element("g", hint, label, bar, number)


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


def _words(value: float | None, written: Written) -> str:
    if value is None:
        return "not measured"
    return written(value) if math.isfinite(value) else "infinite"


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _at(place: float) -> str:
    return f"{place:.1f}"
