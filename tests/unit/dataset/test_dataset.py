"""Datasets of several files: which a path means, what they are, and what makes a file unusable as a whole."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from mindbatch.dataset import dataset as dataset_module
from mindbatch.dataset.data_files import DataFile, find_files
from mindbatch.dataset.dataset import Dataset
from mindbatch.dataset.records import Record
from mindbatch.io.errors import ConfigError
from mindbatch.io.storage import Storage
from mindbatch.ledger.run_folder import RunFolder
from small_runs import make_run

REQUEST = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Hi"}}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def faults(path: Path | list[str], *arguments: Any, **options: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        Dataset(path, *arguments, **options)
    return caught.value.lines


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
        Record("f.parquet", 1, {"id": 10}, fills_absent=True),
    ]
    assert list(dataset.records()) == expected
    assert list(dataset.records()) == expected, "each call reads anew"
    assert dataset.files == sorted(tmp_path.iterdir())


def test_several_paths_are_one_stream_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    write(tmp_path / "b.jsonl", {"id": 1})
    (tmp_path / "x/a b.csv").write_text("id\n2\n")
    dataset = Dataset([f"{tmp_path}/b.jsonl", f"{tmp_path}/x/*.csv"])
    assert [record.columns for record in dataset.records()] == [{"id": 1}, {"id": "2"}]
    assert [*dataset.digest()] == ["b.jsonl", "x/a b.csv"]
    first, second = faults([f"{tmp_path}/no.csv", f"{tmp_path}/b.jsonl", f"{tmp_path}/y"])
    assert ("/no.csv" in first, "/y" in second) == (True, True)
    (file,) = (tmp_path / "x").iterdir()
    several = f"data.path: {file}: several of its paths mean this file"
    assert faults([str(file), f"{tmp_path}/x"]) == (several,)


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
    assert caught.value.lines == (
        f"data.path: {tmp_path}/a.jsonl holds OpenAI batch requests, {tmp_path}/{other} does not; give one "
        "kind at a time, or say with data.format which all of them are (openai, jsonl)",
    )
    assert Dataset(tmp_path, "openai").is_openai
    assert not Dataset(tmp_path, "jsonl").is_openai


def test_only_the_beginning_is_searched_for_a_readable_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_module, "MAX_LOOKED_AT", 5)
    (tmp_path / "a.jsonl").write_text("\n" * 5 + json.dumps(REQUEST))
    assert not Dataset(tmp_path).is_openai
    (tmp_path / "a.jsonl").write_text("\n" * 4 + json.dumps(REQUEST))
    assert Dataset(tmp_path).is_openai


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
    assert (wide.columns, wide.error) == (None, "has 40,000 columns; at most 10,000 are read")
    assert good.columns == {"prompt": "a"}


KNOWN = ".jsonl, .ndjson, .json, .csv, .tsv, .txt, .parquet, and all but .parquet also with .gz or .zst"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "b.jsonl",
        "a.txt",
        "c.csv.gz",
        ".hidden.jsonl",
        "README.md",
        "sub/d.jsonl",
        "sub/e.CSV.ZST",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "folder.jsonl").mkdir()
    return tmp_path


def names(path: str | Path, given_format: str = "auto") -> list[str]:
    return [file.name for file in find_files(path, given_format)]


def fault(path: str | Path, given_format: str = "auto") -> str:
    with pytest.raises(ConfigError) as caught:
        find_files(path, given_format)
    return "\n".join(caught.value.lines)


@pytest.mark.parametrize(
    ("name", "held", "compression"),
    [
        ("a.jsonl", "jsonl", None),
        ("a.ndjson", "jsonl", None),
        ("a.json", "json", None),
        ("a.csv.gz", "csv", "gzip"),
        ("a.tsv.zst", "tsv", "zstd"),
        ("a.b.txt", "text", None),
        ("A.PARQUET", "parquet", None),
        ("A.JSONL.GZ", "jsonl", "gzip"),
    ],
)
def test_names_say_what_files_hold(tmp_path: Path, name: str, held: str, compression: str | None) -> None:
    path = tmp_path / name
    path.touch()
    (file,) = find_files(path)
    assert (file.path, file.name, file.format, file.compression) == (path, name, held, compression)


def test_a_folder_means_its_own_files_of_known_names_in_order(folder: Path) -> None:
    assert names(folder) == ["a.txt", "b.jsonl", "c.csv.gz"]
    assert names(str(folder) + "/") == ["a.txt", "b.jsonl", "c.csv.gz"]


def test_a_folder_with_a_format_means_its_files_of_that_format(folder: Path) -> None:
    assert names(folder, "jsonl") == names(folder, "openai") == ["b.jsonl"]
    assert names(folder, "csv") == ["c.csv.gz"]
    assert fault(folder, "json") == f"data.path='{folder}': the folder holds no file with a name in .json"


def test_a_file_whose_name_looks_like_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "a[1].jsonl").touch()
    assert names(tmp_path / "a[1].jsonl") == ["a[1].jsonl"]


def test_all_unknown_names_of_a_pattern_are_refused_at_once(folder: Path) -> None:
    (folder / "x.parquet.gz").touch()
    (folder / "y.gz").touch()
    assert fault(folder / "*").splitlines() == [
        f"data.path: {folder}/README.md: the name does not say what the file holds; known are {KNOWN}; "
        "or give data.format",
        f"data.path: {folder}/x.parquet.gz: Parquet is compressed within; unpack the file first",
        f"data.path: {folder}/y.gz: the name does not say what the file holds; known are {KNOWN}; "
        "or give data.format",
    ]


def test_a_given_format_goes_before_the_name(folder: Path) -> None:
    assert find_files(folder / "README.md", "text") == [DataFile(folder / "README.md", "README.md", "text")]
    assert find_files(folder / "a.txt", "openai") == [DataFile(folder / "a.txt", "a.txt", "jsonl")]
    assert find_files(folder / "c.csv.gz", "text")[0].compression == "gzip"
    assert fault(folder, "xml") == (
        "data.format='xml': must be one of auto, jsonl, json, csv, tsv, text, parquet, openai"
    )


def test_paths_that_lead_nowhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert fault("b.jsnl") == "data.path='b.jsnl': no such file or folder; did you mean b.jsonl?"
    assert fault("") == "data.path: must be given: a file, a folder, a pattern, or - for standard input"
    assert fault("~nobody-at-all/a.jsonl").endswith("cannot be used (the home folder cannot be found)")
    assert fault("x" * 300).endswith("cannot be used (File name too long)")
    (folder / "empty").mkdir()
    assert fault("empty").startswith(
        "data.path='empty': the folder holds no file with a name in .csv, .json,"
    )


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert fault(tmp_path / "pipe.jsonl").endswith(
        "pipe.jsonl': is no file that can be read twice; give data.path=- and pipe it in"
    )


def test_a_name_that_is_not_utf8_becomes_text(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff.jsonl")
    path.touch()
    (file,) = find_files(tmp_path)
    assert (file.path, file.name) == (path, "\\xff.jsonl")


def test_a_pattern_leaves_out_the_files_of_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(folder / "runs/other", errors=[{"key": "0"}])
    RunFolder(folder / "runs/mine").make(Storage())
    (folder / "runs/mine/results.jsonl").touch()
    (folder / "runs/more.jsonl").touch()
    monkeypatch.chdir(folder)
    outputs = Path("runs/mine")
    for pattern in ("**/*.jsonl", f"{folder}/**/*.jsonl"):
        found = [file.name for file in find_files(pattern, outputs=outputs)]
        assert found == ["b.jsonl", "runs/more.jsonl", "sub/d.jsonl"]
    assert fault("runs/oth*/*.jsonl").endswith("no file matches; 1 of runs, which are left out")
    assert names("runs/other/errors.jsonl") == ["errors.jsonl"]  # named itself, it is meant


def test_where_the_run_writes_is_no_data(folder: Path) -> None:
    run = make_run(folder / "run", errors=[{"key": "0"}])
    for path in (run.errors, run.path, run.path / "*.jsonl", run.ledger):
        with pytest.raises(ConfigError, match=r"is in output\.dir, where the run writes; give another"):
            find_files(path, outputs=run.path)
    assert fault(run.path).endswith("is the folder of a run; name the file in it that is meant")
