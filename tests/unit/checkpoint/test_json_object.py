"""JSON that is not exactly one UTF-8 object with unique keys and finite numbers is refused."""

import tracemalloc
from pathlib import Path

import pytest

from mindbatch.checkpoint.json_object import parse_json_object, read_json_object
from mindbatch.io.errors import CheckpointError
from mindbatch.io.strict_json import MAX_PARTS


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "f: not valid JSON"),
        (b"{} {}", "Extra data"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b'{"a": "\xff"}', "f: not UTF-8 text (byte 7)"),
        (b'{"a": {"b": 1, "b": 1}}', "the key 'b' appears twice"),
        (b'{"a": Infinity}', "Infinity is no number of JSON"),
        (b'{"a": -Infinity}', "-Infinity is no number of JSON"),
        (b'{"a": 1e999}', "'1e999' is too large"),
        (b'{"a": ' + b"1" * 5000 + b"}", "5000 digits"),
        (b"[" * 200_000, "nested too deeply"),
        (b"[]", "holds a JSON array"),
        (b"null", "holds a JSON null"),
        (b"true", "holds a JSON boolean"),
        (b"1.5", "holds a JSON number"),
        (b'"x"', "holds a JSON string"),
    ],
)
def test_refused(data: bytes, message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        parse_json_object(data, "f")
    assert message in str(caught.value)
    assert len(caught.value.faults) == 1
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("part", [b"[],", b"{},", b"0,", b'"ab",'])
def test_memory_is_bounded_before_anything_is_parsed(part: bytes) -> None:
    data = b'{"a": [' + part * (10_000_000 // len(part)) + b"0]}"
    tracemalloc.start()
    try:
        with pytest.raises(
            CheckpointError, match=f"lists, objects and commas; at most {MAX_PARTS} are allowed"
        ):
            parse_json_object(data, "f")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_as_many_parts_as_are_allowed() -> None:
    data = b'{"a":[' + b"0," * (MAX_PARTS - 2)
    assert len(parse_json_object(data + b"0]}", "f")["a"]) == MAX_PARTS - 1
    with pytest.raises(CheckpointError, match="at most"):
        parse_json_object(data + b"0,0]}", "f")


def test_ordinary_object_is_read() -> None:
    data = '{"a": [1, -2.5, null, true, "é\\u00e9"], "b": {"a": 123456789012345678901234567890}}'
    value = parse_json_object(data.encode(), "f")
    assert value == {"a": [1, -2.5, None, True, "éé"], "b": {"a": 123456789012345678901234567890}}


def test_size_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text('{"a": "' + "x" * 100 + '"}')
    assert read_json_object(path, path.stat().st_size)["a"]
    with pytest.raises(CheckpointError, match=r"f.json: .*109 bytes; at most 108 are allowed"):
        read_json_object(path, 108)


def test_lfs_pointer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 3\n")
    with pytest.raises(CheckpointError, match=r"config.json: a Git LFS pointer.*git lfs pull"):
        read_json_object(path, 1000)


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_json_object(tmp_path, 1000)
