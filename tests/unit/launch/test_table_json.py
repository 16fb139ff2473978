"""JSON of rank tables: bounded and strict."""

from pathlib import Path

import pytest

from mindbatch.launch.table_json import LARGEST_FILE, at, parse_json, read_json, shown


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"{", "not valid JSON: Expecting property name"),
        (b'{"a": [{"b": 1, "b": 2}]}', 'the key "b" appears twice in one object'),
        (b'{"a": 1 // no\n}', "; JSON has no comments"),
        (b'{"a": NaN}', "NaN is no number of JSON"),
        (b'{"a": -Infinity}', "-Infinity is no number of JSON"),
        (b"\xff{}", "not UTF-8 text (byte 0)"),
        (b"[" * 200_000, "JSON is nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a number of the JSON has 5000 digits"),
        (b"", "not valid JSON"),
    ],
)
def test_other_content_is_refused_in_one_line(data: bytes, fault: str) -> None:
    with pytest.raises(ValueError, match="JSON|UTF-8|twice") as caught:
        parse_json(data)
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_is_read_no_further_than_it_may_be_long(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(b" " * (LARGEST_FILE - 2) + b"{}")
    assert read_json(path) == {}
    with path.open("ab") as file:
        file.write(b" ")
    with pytest.raises(ValueError, match=r"^more than 8 MiB; no rank table is so large$"):
        read_json(path)
    with pytest.raises(ValueError, match="not a regular file"):
        read_json(Path("/dev/zero"))
    with pytest.raises(ValueError, match=r"^cannot be read \(No such file"):
        read_json(tmp_path / "other")
    with pytest.raises(ValueError, match=r"^cannot be read \(Is a directory"):
        read_json(tmp_path)


def test_places_and_values_are_shown_in_plain_characters() -> None:
    assert at("", "a") == "a"
    assert at("a[0]", "\x1b[2J") == 'a[0]."\\u001b[2J"'
    assert len(at("", "A" * 5000)) < 200
    assert shown("é") == '"\\u00e9"'
    assert shown("x" * 100) == '"' + "x" * 56 + "..."
    assert (shown({}), shown([]), shown(None), shown(3)) == ("an object", "a list", "null", "3")
