"""Rankings: points where they belong, the best first."""

import math
from xml.etree import ElementTree

import pytest

from mindbatch.evaluation.rendering import Ranked, Scale, ranking


def written(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


SPEED = Scale("speed", "Speed", written, toward="faster")
COST = Scale("cost", "Cost", written, "low", "cheaper")


def points(svg: str) -> list[float]:
    return [float(point.attrib["cx"]) for point in ElementTree.fromstring(svg).iter("circle")]


def names(svg: str) -> list[str | None]:
    texts = ElementTree.fromstring(svg).iter("text")
    return [text.text for text in texts if text.attrib.get("class") == "name"]


@pytest.mark.parametrize(("scale", "order"), [(SPEED, ["c", "b", "a"]), (COST, ["a", "b", "c"])])
def test_the_best_stands_at_the_top_and_to_the_right(scale: Scale, order: list[str]) -> None:
    svg = ranking(scale, [Ranked("a", 1.0), Ranked("b", 2.0), Ranked("c", 4.0)])
    assert names(svg) == order
    first, second, third = points(svg)
    assert first > second > third
    assert abs(first - third) / abs(points(svg)[0 if scale is COST else 2] - second) == pytest.approx(3)
    assert f"{scale.toward} →" in svg


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
    assert root.findtext("desc") == "Best first; to the right is faster. c 0.0, a -, b inf"
    assert root.findtext("title") == "Speed"
    assert root.attrib["role"] == "img"


def test_a_long_name_is_cut_and_kept_in_the_hint() -> None:
    name = "a_name_that_is_too_long_for_its_column"
    svg = ranking(SPEED, [Ranked(name, 1.0)])
    assert [each.text for each in ElementTree.fromstring(svg).iter("title")][1] == f"{name}: 1.0"
    assert "a_name_…" in svg
