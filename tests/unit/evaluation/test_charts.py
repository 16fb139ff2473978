"""Charts: every value is in one bin, shares add up, and speeds are drawn where they belong."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.evaluation.charts import MAX_BINS, MeanSpeed, bins, histogram, quantile, shares, timeline

LENGTHS = st.lists(st.integers(0, 300) | st.integers(0, 10**7), min_size=1, max_size=200)


@given(LENGTHS)
def test_every_value_is_in_exactly_one_bin(values: list[int]) -> None:
    counted = bins(values)
    assert sum(entry.count for entry in counted) == len(values)
    for entry in counted:
        inside = [
            value for value in values if entry.low <= value and (entry.high is None or value <= entry.high)
        ]
        assert entry.count == len(inside)
    closed = counted if counted[-1].high is not None else counted[:-1]
    assert len(closed) <= MAX_BINS + 1
    assert all(
        first.high is not None and first.high + 1 == second.low
        for first, second in zip(counted, counted[1:], strict=False)
    )
    assert len({entry.high - entry.low for entry in closed if entry.high is not None}) == 1


@given(LENGTHS, st.floats(0.01, 1))
def test_a_quantile_is_the_smallest_value_with_its_share_below(values: list[int], share: float) -> None:
    value = quantile(sorted(values), share)
    assert sum(other <= value for other in values) >= share * len(values) - 1e-6
    assert sum(other < value for other in values) < share * len(values) + 1e-6


def test_a_long_tail_is_one_bin() -> None:
    *_, last = bins([*range(1000), 500_000])
    assert (last.label, last.count) == ("1,000 and above", 1)
    assert bins([5])[0].label == "5"


@given(LENGTHS)
def test_a_histogram_is_a_drawing_within_its_frame(values: list[int]) -> None:
    tree = ElementTree.fromstring(histogram("h", "<lengths>", values))
    _, _, width, height = map(float, tree.attrib["viewBox"].split())
    for bar in tree.iter("rect"):
        assert float(bar.attrib["x"]) + float(bar.attrib["width"]) <= width + 0.02
        assert float(bar.attrib["y"]) + float(bar.attrib["height"]) <= height


def test_shares_are_ordered_and_of_all() -> None:
    drawn = shares("f", "Finish reasons", {"length": 1, "stop": 3})
    assert re.findall(r'class="value">([^<]*)<', drawn) == ["3 (75.0%)", "1 (25.0%)"]
    ElementTree.fromstring(drawn)


@pytest.mark.parametrize(
    ("speed", "top"), [(0.0, "1"), (0.3, "0.5"), (7.0, "10"), (1000.0, "1,000"), (1001.0, "2,000")]
)
def test_a_timeline_has_a_round_scale_above_all(speed: float, top: str) -> None:
    drawn = timeline(
        "t", "Speed", [[MeanSpeed(0, 5, speed), MeanSpeed(5, 10, speed / 2)], [], [MeanSpeed(10, 20, 0.0)]]
    )
    tree = ElementTree.fromstring(drawn)
    assert f">{top}</text>" in drawn
    heights = [float(height) for height in re.findall(r"V([\d.]+)", drawn)]
    assert all(16 <= height <= 126 for height in heights)
    assert heights[0] <= heights[1] <= heights[2] == 126
    assert len([line for line in tree.iter("line") if line.attrib["class"] == "resumed"]) == 1
