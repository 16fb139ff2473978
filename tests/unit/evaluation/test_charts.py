"""Plots: points where they belong, the best first, names that do not cover each other."""

import math
import re
from itertools import combinations
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.evaluation.axis import axis_for
from mindbatch.evaluation.charts import Ranked, ranking, scatter
from mindbatch.evaluation.labels import Box, place_labels
from mindbatch.evaluation.measures import Measure

SPEED = Measure("speed", "speed", "Speed", "How fast.", ".1f", toward="faster")
COST = Measure("cost", "cost", "Cost", "How dear.", ".1f", "low", "cheaper")


def points(svg: str) -> list[float]:
    return [float(point.attrib["cx"]) for point in ElementTree.fromstring(svg).iter("circle")]


def names(svg: str) -> list[str | None]:
    texts = ElementTree.fromstring(svg).iter("text")
    return [text.text for text in texts if text.attrib.get("class") == "name"]


@pytest.mark.parametrize(("measure", "order"), [(SPEED, ["c", "b", "a"]), (COST, ["a", "b", "c"])])
def test_the_best_stands_at_the_top_and_to_the_right(measure: Measure, order: list[str]) -> None:
    svg = ranking(measure, [Ranked("a", 1.0), Ranked("b", 2.0), Ranked("c", 4.0)])
    assert names(svg) == order
    first, second, third = points(svg)
    assert first > second > third
    assert abs(first - third) / abs(points(svg)[0 if measure is COST else 2] - second) == pytest.approx(3)
    assert f"{measure.toward} →" in svg


def test_an_interval_is_drawn_around_its_value() -> None:
    svg = ranking(COST, [Ranked("a", 2.0, (1.0, 3.0)), Ranked("b", 5.0, leads=True)])
    lines = ElementTree.fromstring(svg).iter("line")
    (drawn,) = (line for line in lines if line.attrib["class"] == "interval")
    assert float(drawn.attrib["x1"]) < points(svg)[0] < float(drawn.attrib["x2"])
    kinds = [point.attrib["class"] for point in ElementTree.fromstring(svg).iter("circle")]
    assert kinds == ["point behind", "point"]
    assert "a: 2.0 (1.0 to 3.0)" in svg


def test_what_is_missing_has_no_point_but_is_named() -> None:
    svg = ranking(SPEED, [Ranked("a", None), Ranked("b", math.inf), Ranked("c", 0.0)])
    assert len(points(svg)) == 1
    root = ElementTree.fromstring(svg)
    assert root.findtext("desc") == "Best first; to the right is faster. c 0.0, a -, b infinite"
    assert root.findtext("title") == "Speed"
    assert root.attrib["role"] == "img"


def test_a_long_name_is_cut_and_kept_in_the_hint() -> None:
    name = "a_name_that_is_too_long_for_its_column"
    svg = ranking(SPEED, [Ranked(name, 1.0)])
    assert [each.text for each in ElementTree.fromstring(svg).iter("title")][1] == f"{name}: 1.0"
    assert "a_name_…" in svg


@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=9), st.booleans())
def test_an_axis_holds_its_values_and_its_ticks(values: list[float], logarithmic: bool) -> None:
    axis = axis_for(values, 10, 100, logarithmic=logarithmic)
    assert all(10 <= axis.place(value) <= 100 for value in values)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 12
    assert all(9.9 <= axis.place(tick) <= 100.1 for tick in ticks)
    assert ticks == sorted(ticks)


def test_an_axis_that_spans_a_lot_is_logarithmic() -> None:
    wide, narrow = axis_for([1, 1000], 0, 1, logarithmic=True), axis_for([1, 9], 0, 1, logarithmic=True)
    assert (wide.logarithmic, narrow.logarithmic) == (True, False)
    assert wide.place(math.sqrt(1000)) == pytest.approx(0.5, abs=0.01)
    assert wide.ticks() == [1, 10, 100, 1000]
    assert narrow.ticks() == [0, 5, 10]


def test_points_stand_in_order() -> None:
    svg = scatter("id", "Title", ["a", "b", "c"], [(1, 0.1), (2, 0.5), (3, 0.2)], ("x", "y"))
    places = [
        (float(point.attrib["cx"]), float(point.attrib["cy"]))
        for point in ElementTree.fromstring(svg).iter("circle")
    ]
    assert sorted(places) == places
    assert [y for _, y in sorted(places, key=lambda place: -place[1])] != [y for _, y in places]
    assert min(range(3), key=lambda point: places[point][1]) == 1
    assert re.search("<desc[^>]*>x across, y upwards. a: 1, 0.1; b: 2, 0.5", svg)


@pytest.mark.parametrize("count", [2, 8])
def test_names_of_points_that_crowd_do_not_meet(count: int) -> None:
    points = [(200.0 + 3 * index, 150.0 + 2 * index) for index in range(count)]
    labels = place_labels(points, ["strategy"] * count, Box(0, 0, 460, 340))
    assert not any(first.box.meets(second.box) for first, second in combinations(labels, 2))
