"""Lines of the ledger: read back as they were written, or not at all."""

import math
from typing import Any

import orjson
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.ledger.entries import Entry, decode, encode, seal, unseal

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
ENTRY = Entry("k", "00ff", "result", {"text": "a\nb\u2028", "ids": [1, 2]})


@given(TEXT, TEXT, st.sampled_from(["result", "error"]), st.dictionaries(TEXT, VALUES, max_size=4))
def test_an_entry_comes_back_from_one_line(key: str, row: str, kind: Any, body: dict[str, Any]) -> None:
    line = encode(Entry(key, row, kind, body), 1)
    assert line.index(b"\n") == len(line) - 1
    assert decode(line) == Entry(key, row, kind, body)


def test_the_layout() -> None:
    line = encode(ENTRY, 1)
    content = orjson.loads(line)
    assert list(content) == ["session", "key", "row", "kind", "body", "check"]
    checked = line[: line.rindex(b',"check"')]
    assert content["check"] == xxhash.xxh3_64_hexdigest(checked)
    assert content["body"] == ENTRY.body


def test_no_shorter_and_no_longer_line_is_taken() -> None:
    line = encode(ENTRY, 1)
    assert all(decode(line[:end]) is None for end in range(len(line)))
    assert all(decode(line[start:]) is None for start in range(1, len(line)))
    assert decode(line + b"\n") is None
    assert decode(line + line) is None


def test_no_changed_byte_is_taken() -> None:
    line = encode(ENTRY, 1)
    for place in range(len(line)):
        for bit in range(8):
            damaged = bytearray(line)
            damaged[place] ^= 1 << bit
            assert decode(bytes(damaged)) is None, (place, bit)


@pytest.mark.parametrize(
    "content",
    [
        {"key": "k"},
        {"key": 1, "row": "r", "kind": "result", "body": {}},
        {"key": "k", "row": None, "kind": "result", "body": {}},
        {"key": "k", "row": "r", "kind": "other", "body": {}},
        {"key": "k", "row": "r", "kind": "error", "body": []},
    ],
)
def test_a_sealed_line_that_is_no_entry_is_not_taken(content: dict[str, Any]) -> None:
    assert unseal(seal(content)) is not None
    assert decode(seal(content)) is None


def test_a_check_alone_makes_no_json() -> None:
    checked = b'{"key":'
    line = checked + b',"check":"' + xxhash.xxh3_64_hexdigest(checked).encode() + b'"}\n'
    assert unseal(line) is None


def test_what_json_lacks() -> None:
    entry = decode(encode(Entry("k", "r", "result", {"top": {7: -0.5}, "bad": math.nan}), 1))
    assert entry is not None
    assert entry.body == {"top": {"7": -0.5}, "bad": None}
