"""Lines of the ledger and run.json: read back as they were written, or not at all; compared by field."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import orjson
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.io.errors import ConfigError
from mindbatch.io.storage import StorageError
from mindbatch.ledger.entries import Entry, decode, encode, seal, unseal
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord, changes

RECORD = RunRecord(
    created="2026-01-01T00:00:00+00:00",
    command=["mindbatch", "batch", "data.path=今.jsonl"],
    fields={
        "decoding.temperature": 0.7,
        "decoding.stop": ["a", "\n"],
        "decoding.seed": 2**64 - 1,
        "adapter": None,
    },
    dataset={"a.jsonl": {"bytes": 3, "xxh3_128": "ff"}},
    date="2026-01-01",
)


@pytest.fixture
def written(tmp_path: Path) -> RunFolder:
    RECORD.write(RunFolder(tmp_path))
    return RunFolder(tmp_path)


def test_a_record_comes_back(written: RunFolder) -> None:
    assert RunRecord.read(written) == RECORD
    assert json.loads(written.run_file.read_bytes())["fingerprint"] == RECORD.fingerprint


def test_the_fingerprint_is_of_the_fields_alone_and_of_each() -> None:
    reordered = dict(reversed(RECORD.fields.items()))
    assert (
        dataclasses.replace(RECORD, fields=reordered, command=[], dataset={}).fingerprint
        == RECORD.fingerprint
    )
    for name in RECORD.fields:
        changed = {**RECORD.fields, name: "other"}
        assert dataclasses.replace(RECORD, fields=changed).fingerprint != RECORD.fingerprint
    assert len(RECORD.fingerprint) == 32


def test_every_damaged_byte_is_noticed(written: RunFolder) -> None:
    whole = written.run_file.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x01
        written.run_file.unlink()  # ext4 takes long to write over a file
        written.run_file.write_bytes(damaged)
        try:
            assert RunRecord.read(written) == RECORD  # a changed space between members says the same
        except ConfigError as error:
            (line,) = error.lines
            assert line.startswith(f"{written.run_file}: ")
            assert "\n" not in line


def test_something_else_is_refused(written: RunFolder) -> None:
    edited = written.run_file.read_text().replace("0.7", "0.8")
    for content, reason in [
        *((content, "damaged") for content in ("", "{", "[]", "1", "null", "{}")),
        (edited, ".*edited by hand: it does not fit its own check"),
        ('{"version": 1}', "written in format 1; this mindbatch reads format 2"),
    ]:
        written.run_file.write_text(content)
        with pytest.raises(ConfigError, match=rf"run\.json: {reason}"):
            RunRecord.read(written)


def test_no_record_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        RunRecord.read(RunFolder(tmp_path))
    assert str(caught.value) == f"{tmp_path}: no run here (it has no run.json)"
    (tmp_path / "run.json").mkdir()
    with pytest.raises(StorageError, match="cannot be read"):
        RunRecord.read(RunFolder(tmp_path))


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (0.0, 0.7, "x 0.0 -> 0.7"),
        ("float32", "bfloat16", "x float32 -> bfloat16"),
        (None, "", 'x null -> ""'),
        ("0", 0, 'x "0" -> 0'),
        ("null", None, 'x "null" -> null'),
        (True, False, "x true -> false"),
        ([1], [1, 2], "x [1] -> [1, 2]"),
        ("a b", "a\nb", r'x "a b" -> "a\nb"'),
        ("今", "天", r'x "\u4eca" -> "\u5929"'),
        (0, 0.0, "x 0 -> 0.0"),
    ],
)
def test_a_change_names_both_values(before: Any, after: Any, line: str) -> None:
    assert changes({"x": before, "same": 1}, {"x": after, "same": 1}) == [line]
    assert changes({"x": before}, {"x": before}) == []


def test_fields_of_one_side_only() -> None:
    assert changes({"a": None}, {"b": 1}) == ["b (none) -> 1"]
    assert changes({"a": "(none)"}, {}) == ['a "(none)" -> (none)']


def test_long_values_are_shown_where_they_differ() -> None:
    before, after = "x" * 500 + "old" + "y" * 500, "x" * 500 + "new" + "y" * 500
    (line,) = changes({"data.template": before}, {"data.template": after})
    assert len(line) < 180
    assert "xold" in line
    assert "xnew" in line
    assert line.count("...") == 4
    (line,) = changes({"t": "x" * 100}, {"t": "x" * 101})
    assert line.split(" -> ")[0] != line.split(" -> ")[1]


@pytest.mark.parametrize(
    "change",
    [
        {"created": 1},
        {"command": "batch"},
        {"command": ["batch", []]},
        {"fields": []},
        {"dataset": None},
        {"date": None},
        {"date": "yesterday"},
    ],
)
def test_a_check_that_fits_is_no_proof_of_what_is_checked(written: RunFolder, change: dict[str, Any]) -> None:
    dataclasses.replace(RECORD, **change).write(written)
    with pytest.raises(ConfigError, match="is not a run's"):
        RunRecord.read(written)


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
