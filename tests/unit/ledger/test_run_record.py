"""run.json: whole, checked, and compared field by field."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from mindbatch.io.errors import ConfigError
from mindbatch.io.storage import StorageError
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
def folder(tmp_path: Path) -> RunFolder:
    RECORD.write(RunFolder(tmp_path))
    return RunFolder(tmp_path)


def test_a_record_comes_back(folder: RunFolder) -> None:
    assert RunRecord.read(folder) == RECORD
    assert json.loads(folder.run_file.read_bytes())["fingerprint"] == RECORD.fingerprint


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


def test_every_damaged_byte_is_noticed(folder: RunFolder) -> None:
    whole = folder.run_file.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x01
        folder.run_file.unlink()  # ext4 takes long to write over a file
        folder.run_file.write_bytes(damaged)
        try:
            assert RunRecord.read(folder) == RECORD  # a changed space between members says the same
        except ConfigError as error:
            (line,) = error.faults
            assert line.startswith(f"{folder.run_file}: ")
            assert "\n" not in line


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"1", b"null", b"{}"])
def test_something_else_is_refused(folder: RunFolder, content: bytes) -> None:
    folder.run_file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"run\.json: damaged"):
        RunRecord.read(folder)


def test_an_edited_record_is_refused(folder: RunFolder) -> None:
    folder.run_file.write_text(folder.run_file.read_text().replace("0.7", "0.8"))
    with pytest.raises(ConfigError, match="edited by hand: it does not fit its own check"):
        RunRecord.read(folder)


def test_another_format_is_refused_by_its_number(folder: RunFolder) -> None:
    folder.run_file.write_text('{"version": 1}')
    with pytest.raises(ConfigError, match=r"run\.json: written in format 1; this mindbatch reads format 2"):
        RunRecord.read(folder)


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
def test_a_check_that_fits_is_no_proof_of_what_is_checked(folder: RunFolder, change: dict[str, Any]) -> None:
    dataclasses.replace(RECORD, **change).write(folder)
    with pytest.raises(ConfigError, match="is not a run's"):
        RunRecord.read(folder)
