"""The header reader refuses every malformed header with a CheckpointError that says what and where."""

import json

import pytest
from safetensors_writer import entry, file_bytes

from mindbatch.checkpoint.formats.safetensors_file import (
    MAX_HEADER_BYTES,
    header_length,
    parse_header,
)
from mindbatch.checkpoint.formats.stored import StoredTensor
from mindbatch.io.errors import CheckpointError

GOOD = {"a": entry("F32", [2, 3], 0, 24), "b": entry("BF16", [4], 24, 32)}


def parse(header: object, data_bytes: int) -> dict[str, StoredTensor]:
    content = file_bytes(header)[8:]
    return parse_header(content, 8 + len(content) + data_bytes, "w.safetensors")


def errors_of(header: object, data_bytes: int) -> str:
    with pytest.raises(CheckpointError) as caught:
        parse(header, data_bytes)
    assert all(fault.startswith("w.safetensors: ") and "\n" not in fault for fault in caught.value.lines)
    return str(caught.value)


def test_header_may_be_padded_and_in_any_order_and_carry_metadata() -> None:
    header = {"b": GOOD["b"], "__metadata__": {"format": "pt"}, "a": GOOD["a"]}
    assert list(parse(json.dumps(header).encode() + b"   ", 32)) == ["a", "b"]


@pytest.mark.parametrize(
    ("header", "data_bytes", "message"),
    [
        (b"[]", 0, "must begin with '{'"),
        (b' {"a": 1}', 0, "must begin with '{'"),
        (b"", 0, "must begin with '{'"),
        (b'{"a": ', 0, "not valid JSON"),
        (b'{"\xff": 1}', 0, "not UTF-8"),
        (b"{" + b'"a":{' * 100_000, 0, "nested too deeply"),
        (b'{"a": ' + b"[" * 200_000, 0, "nested too deeply"),
        (b'{"a": [' + b"[]," * 500_000 + b"[]]}", 0, "lists, objects and commas; at most 1000000"),
        (b'{"a": NaN}', 0, "NaN"),
        (
            b'{"a": {"dtype": "U8", "dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}',
            1,
            "'dtype' appears twice",
        ),
        (b'{"a": 1, "a": 2}', 0, "'a' appears twice"),
        ({"__metadata__": {"x": 1}}, 0, "__metadata__"),
        ({"__metadata__": []}, 0, "__metadata__"),
        ({"a": []}, 0, "exactly the keys"),
        ({"a": {"dtype": "U8", "shape": [1]}}, 1, "exactly the keys"),
        ({"a": {**entry("U8", [1], 0, 1), "extra": 1}}, 1, "exactly the keys"),
        ({"a": entry("F31", [1], 0, 4)}, 4, "dtype 'F31' is unknown"),
        ({"a": {**entry("U8", [1], 0, 1), "dtype": ["U8"]}}, 1, "dtype [U8] is unknown"),
        ({"a": entry("F32", [-1], 0, 4)}, 4, "shape [-1]"),
        ({"a": entry("F32", [-1, -1], 0, 4)}, 4, "shape [-1, -1]"),
        ({"a": entry("F32", [1.0], 0, 4)}, 4, "shape [1.0]"),
        ({"a": entry("F32", [True], 0, 4)}, 4, "shape [true]"),
        ({"a": entry("F32", "1", 0, 4)}, 4, "shape '1'"),
        ({"a": entry("F32", [2**64 + 1], 0, 4)}, 4, "none negative or huge"),
        ({"a": entry("F32", [2**32, 2**32], 0, 0)}, 0, "is too large"),
        ({"a": entry("F32", [0, 2**62, 2**62], 0, 0)}, 0, "is too large"),
        ({"a": entry("F32", [1] * 33, 0, 4)}, 4, "at most 32 integers"),
        ({"a": entry("F32", [2], 0, 4)}, 4, "needs 8 bytes, its data_offsets [0, 4] hold 4"),
        ({"a": entry("F32", [1], 4, 0)}, 4, "begin <= end"),
        ({"a": entry("F32", [1], -4, 0)}, 4, "data_offsets [-4, 0]"),
        ({"a": {**GOOD["a"], "data_offsets": [0, 4, 8]}}, 8, "data_offsets [0, 4, 8]"),
        ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 2, 6)}, 6, "'b' overlaps tensor 'a'"),
        ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 0, 4)}, 4, "overlaps"),
        ({"a": entry("F32", [1], 4, 8)}, 8, "gap of 4 bytes after the header"),
        (
            {"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 6, 10)},
            10,
            "gap of 2 bytes after tensor 'a'",
        ),
        ({"a": entry("F32", [1], 0, 4)}, 5, "1 bytes after the last tensor"),
        ({"a": entry("F32", [1], 0, 4)}, 3, "truncated: tensor 'a' ends at byte"),
        ({}, 1, "after the last tensor"),
    ],
)
def test_malformed_header_is_refused(header: object, data_bytes: int, message: str) -> None:
    assert message in errors_of(header, data_bytes)


@pytest.mark.parametrize(
    "name",
    ["../../x", "/etc/passwd", "a/b", "..", "a\\b", "", "a\nb", "\x1b[2J", "\u202eabc", "\ud800", "x" * 513],
)
def test_unsafe_tensor_name_is_refused(name: str) -> None:
    message = errors_of({name: entry("U8", [1], 0, 1)}, 1)
    assert "a name must" in message
    assert message.isascii()
    assert len(message) < 300


def test_all_faults_are_named_at_once() -> None:
    header = {"a": entry("F31", [-1], 0, 4), "../b": entry("U8", [1], 4, 5), "c": entry("U8", [9], 5, 6)}
    message = errors_of(header, 6)
    assert all(part in message for part in ("'F31'", "[-1]", "'../b'", "needs 9 bytes"))


def test_many_faults_are_counted() -> None:
    lines = errors_of({f"t{i}": [] for i in range(500)}, 0).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "w.safetensors: ... and 490 more errors"


def test_header_length_beyond_the_limit_is_refused() -> None:
    prefix = (MAX_HEADER_BYTES + 1).to_bytes(8, "little")
    with pytest.raises(CheckpointError, match="header length 32000001; at most 32000000"):
        header_length(prefix, 2**40, "w")
    assert header_length(MAX_HEADER_BYTES.to_bytes(8, "little"), 2**40, "w") == MAX_HEADER_BYTES


def test_header_length_beyond_the_file_is_refused() -> None:
    with pytest.raises(CheckpointError, match="truncated: the header needs 18 bytes, the file has 17"):
        header_length((10).to_bytes(8, "little"), 17, "w")
    with pytest.raises(CheckpointError, match="too short"):
        header_length(b"\x02\0\0", 3, "w")


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (b"PK\x03\x04\0\0\x08\x08", "zip archive"),
        (b"\x80\x02}q\0X\x01\0", "Python pickle"),
        (b"<!DOCTYPE html>", "HTML page"),
        (b"GGUF\x03\0\0\0\xff\xff", "GGUF"),
    ],
)
def test_other_formats_are_named(head: bytes, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        header_length(head, len(head), "w")
