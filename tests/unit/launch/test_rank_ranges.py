"""Ranges and lists of devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.launch.given_servers import (
    MOST_DEVICES,
    parse_devices,
    parse_list,
    parse_range,
    physical_devices,
)


@given(
    begin=st.integers(0, MOST_DEVICES - 1), size=st.integers(1, MOST_DEVICES), bracket=st.sampled_from(")]")
)
def test_the_end_is_exclusive_whatever_the_bracket(begin: int, size: int, bracket: str) -> None:
    end = min(begin + size, MOST_DEVICES)
    devices, note = parse_range(f"[{begin},{end}{bracket}")
    assert devices == [*range(begin, end)]
    assert (note is None) == (bracket == ")")


def test_a_square_bracket_is_told_with_both_ways_to_be_clear() -> None:
    assert parse_range("[0,8]")[1] == (
        "the end is exclusive whatever the bracket, as in run_dist_gen.sh: devices 0 to 7; "
        "write [0,8) for these, [0,9) with device 8"
    )
    assert "device 5 alone" in str(parse_range("[5,6]")[1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[3,6)", [3, 4, 5]),
        ("[10,12)", [10, 11]),
        ("[0, 16)", [*range(16)]),
        (" [0,1) ", [0]),
        ("3", [3]),
        ("6, 2,4", [6, 2, 4]),
    ],
)
def test_devices_are_a_range_or_a_list_in_its_order(text: str, expected: list[int]) -> None:
    assert parse_devices(text) == (expected, None)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[0,0)", "holds no device"),
        ("[4,2)", "holds no device"),
        ("[0,1025)", "no more than 1024 devices"),
        ("[0,99999999999999999999)", "must be a range"),
        ("(0,8)", "must be a range of devices like [0,8) or a list like 0,2,4"),
        ("[-1,8)", "must be a range"),
        ("[0,8", "must be a range"),
        ("[٠,٨)", "must be a range"),
        ("", "must be a range"),
        ("0..7", "must be a range"),
        ("1,2,1", "device 1 appears twice"),
        ("1024", "no more than 1024 devices"),
    ],
)
def test_anything_else_is_refused(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match="^[a-z]") as caught:
        parse_devices(text)
    assert fault in str(caught.value)


def test_a_tool_that_takes_ranges_takes_no_lists() -> None:
    with pytest.raises(ValueError, match=r"^must be a range of devices like \[0,8\)$"):
        parse_range("0,1")


def test_visible_devices_are_numbered_from_0() -> None:
    assert physical_devices([0, 2], parse_list("4,5,6,7")) == [4, 6]
    assert physical_devices([9], None) == [9]
    with pytest.raises(ValueError, match="device 2, 3: not there; 2 visible devices are numbered 0 to 1"):
        physical_devices([1, 2, 3], [6, 7])
    with pytest.raises(ValueError, match="list of devices like 4,5,6,7"):
        parse_list("4,,5")
