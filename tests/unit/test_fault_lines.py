"""Values in fault lines are written as users write them, in YAML or JSON, not as Python does."""

from typing import Any

import pytest
import yaml

from mindbatch.io.fault_lines import as_typed, as_written, shown

VALUES = [
    (None, "null"),
    (True, "true"),
    ("a b", "'a b'"),
    (
        ("a b", "null", "Yes", "", "5", "x-1.y/z", "a: b", "你"),
        "[a b, 'null', 'Yes', '', '5', x-1.y/z, 'a: b', '你']",
    ),
    ({"a": None, "b c": {"true": [False, 1, 2.5]}}, "{a: null, b c: {'true': [false, 1, 2.5]}}"),
    ([], "[]"),
    ({}, "{}"),
]


@pytest.mark.parametrize(("value", "written"), VALUES)
def test_a_value_is_written_as_in_yaml(value: Any, written: str) -> None:
    assert as_written(value) == written
    assert yaml.safe_load(written) == (list(value) if isinstance(value, tuple) else value)


def test_a_text_that_was_typed_has_no_quotes() -> None:
    assert as_typed("a\n b") == "a b"
    assert as_typed(["a", None]) == "[a, null]"


def test_what_is_long_is_shortened_and_what_has_no_end_is_named() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert shown("x" * 100) == f"'{'x' * 56}..."
    assert shown(endless) == "list too large to be shown"
