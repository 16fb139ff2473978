"""Datasets of several files, what they are, and what makes a file unusable as a whole."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from mindbatch.dataset import dataset as dataset_module
from mindbatch.dataset.dataset import Dataset
from mindbatch.dataset.records import Record
from mindbatch.io.errors import ConfigError

REQUEST = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Hi"}}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def faults(path: Path, *arguments: Any, **options: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        Dataset(path, *arguments, **options)
    return caught.value.faults


def test_a_folder_of_every_format_is_one_stream(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", {"id": 1}, {"id": 2})
    (tmp_path / "b.json").write_text('[{"id": 3}]')
    (tmp_path / "c.csv").write_text("id\n4\n")
    (tmp_path / "d.tsv").write_text("id\tx\n5\t6\n")
    (tmp_path / "e.txt").write_text("seven\n\nnine\r\n")
    pq.write_table(pa.table({"id": [10]}), tmp_path / "f.parquet")
    dataset = Dataset(tmp_path)
    expected = [
        Record("a.jsonl", 1, {"id": 1}),
        Record("a.jsonl", 2, {"id": 2}),
        Record("b.json", 1, {"id": 3}),
        Record("c.csv", 2, {"id": "4"}),
        Record("d.tsv", 2, {"id": "5", "x": "6"}),
        Record("e.txt", 1, {"prompt": "seven"}),
        Record("e.txt", 2, None, "the line is empty"),
        Record("e.txt", 3, {"prompt": "nine"}),
        Record("f.parquet", 1, {"id": 10}),
    ]
    assert list(dataset.records()) == expected
    assert list(dataset.records()) == expected, "each call reads anew"
    assert dataset.files == sorted(tmp_path.iterdir())


def test_text_is_as_strict_as_other_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfa\xe2\x80\xa8b\n\xff\n" + b"x" * 11 + b"\nlast")
    assert [
        (record.line, record.columns, record.fault) for record in Dataset(tmp_path, "text", 10).records()
    ] == [
        (1, {"prompt": "a\u2028b"}, None),
        (2, None, "not valid UTF-8: byte 0xff at position 0"),
        (3, None, "the line is longer than 10 bytes"),
        (4, {"prompt": "last"}, None),
    ]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([REQUEST], True),
        ([REQUEST | {"more": 1}], True),
        ([{}, REQUEST], False),
        ([{key: value for key, value in REQUEST.items() if key != "url"}], False),
        ([], False),
    ],
)
def test_openai_requests_are_known_by_their_first_row(
    tmp_path: Path, rows: list[Any], expected: bool
) -> None:
    path = write(tmp_path / "a.jsonl", *rows)
    assert Dataset(path).is_openai is expected
    assert Dataset(path, "openai").is_openai is True
    assert Dataset(path, "jsonl").is_openai is False
    assert Dataset(path, name="standard input").is_openai is expected


def test_bad_lines_do_not_hide_openai_requests(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n{torn\n" + json.dumps(REQUEST))
    assert Dataset(path).is_openai is True


@pytest.mark.parametrize("other", ["b.jsonl", "0.jsonl", "b.csv"])
def test_openai_requests_beside_other_rows_are_refused(tmp_path: Path, other: str) -> None:
    write(tmp_path / "a.jsonl", REQUEST)
    (tmp_path / other).write_text('{"prompt": "Hi"}\n')
    (tmp_path / "c.jsonl").write_text("broken\n")
    with pytest.raises(ConfigError) as caught:
        _ = Dataset(tmp_path).is_openai
    assert caught.value.faults == (
        f"data.path: {tmp_path}/a.jsonl holds OpenAI batch requests, {tmp_path}/{other} does not; give one "
        "kind at a time, or say with data.format which all of them are (openai, jsonl)",
    )
    assert Dataset(tmp_path, "openai").is_openai
    assert not Dataset(tmp_path, "jsonl").is_openai


def test_files_without_a_readable_row_say_nothing_of_their_kind(tmp_path: Path) -> None:
    for name in ("a.jsonl", "c.jsonl"):
        (tmp_path / name).write_text("broken\n" * 3)
    assert not Dataset(tmp_path).is_openai
    write(tmp_path / "b.jsonl", REQUEST)
    assert Dataset(tmp_path).is_openai


def test_only_the_beginning_is_searched_for_a_readable_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_module, "MOST_LOOKED_AT", 5)
    (tmp_path / "a.jsonl").write_text("\n" * 5 + json.dumps(REQUEST))
    assert not Dataset(tmp_path).is_openai
    (tmp_path / "a.jsonl").write_text("\n" * 4 + json.dumps(REQUEST))
    assert Dataset(tmp_path).is_openai


def test_only_json_lines_are_taken_for_openai_requests(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([REQUEST]))
    assert Dataset(tmp_path).is_openai is False


def test_digests_are_those_of_the_files_on_the_disk(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_bytes(b"hello\n")
    (tmp_path / "sub/b.txt").write_bytes(b"")
    digest = Dataset(tmp_path / "**/*.txt").digest()
    assert digest == {
        "a.txt": {"bytes": 6, "xxh3_128": xxhash.xxh3_128(b"hello\n").hexdigest()},
        "sub/b.txt": {"bytes": 0, "xxh3_128": "99aa06d3014798d86001c324468d497f"},
    }


def test_the_name_of_standard_input_is_used_everywhere(tmp_path: Path) -> None:
    path = write(tmp_path / "input.spool", {"a": 1})
    dataset = Dataset(path, name="standard input")
    assert list(dataset.records()) == [Record("standard input", 1, {"a": 1})]
    assert list(dataset.digest()) == ["standard input"]
    (record,) = Dataset(path, "text", name="standard input").records()
    assert record.columns == {"prompt": '{"a": 1}'}


def test_every_file_that_is_not_what_its_name_says_is_named(tmp_path: Path) -> None:
    foreign = {
        "a.jsonl": (b"\x1f\x8b\x08\x00", "is gzip data; its name must end in .gz"),
        "b.txt": (b"\x28\xb5\x2f\xfd\x00", "is zstd data; its name must end in .zst"),
        "c.csv": (b"PK\x03\x04", "is a zip archive; unpack it first"),
        "d.json": (b"PAR1\x15\x04", "is a Parquet file; name it .parquet or give data.format=parquet"),
        "e.parquet": (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:12\n",
            "is a Git LFS pointer; fetch the data with `git lfs pull`",
        ),
        "f.jsonl": ("{}".encode("utf-16"), "is UTF-16 text; must be UTF-8"),
        "g.json": (
            b"{}",
            "holds no JSON array of objects; for an object a line, name it .jsonl or give data.format=jsonl",
        ),
        "h.tsv": (b"a\ta\n", "has more than one column 'a'"),
    }
    for name, (content, _) in foreign.items():
        (tmp_path / name).write_bytes(content)
    write(tmp_path / "good.jsonl", {})
    assert faults(tmp_path) == tuple(
        f"data.path: {tmp_path}/{name}: {reason}" for name, (_, reason) in foreign.items()
    )


def test_reading_stops_when_nobody_wants_more(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"a": 1}, {"a": 2})
    rows = Dataset(path).records()
    assert next(rows).columns == {"a": 1}
    rows.close()  # type: ignore[attr-defined]
    assert list(rows) == []


def test_columns_are_bounded_and_looked_through_once(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(40_000)]
    (tmp_path / "wide.csv").write_text(",".join(names) + "\n1\n")
    with pytest.raises(ConfigError, match=r"wide\.csv: has 40,000 columns; at most 10,000 are read"):
        Dataset(tmp_path / "wide.csv")
    (tmp_path / "twice.csv").write_text(",".join(["a"] * 3_000 + names[:3_000] * 2) + "\n")
    with pytest.raises(ConfigError, match=r"more than one column 'a', 'c0', .* and 2996 others"):
        Dataset(tmp_path / "twice.csv")
    (tmp_path / "wide.jsonl").write_bytes(json.dumps(dict.fromkeys(names)).encode() + b'\n{"prompt": "a"}\n')
    wide, good = Dataset(tmp_path / "wide.jsonl").records()
    assert (wide.columns, wide.fault) == (None, "has 40,000 columns; at most 10,000 are read")
    assert good.columns == {"prompt": "a"}
