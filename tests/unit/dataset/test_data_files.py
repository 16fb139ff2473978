"""Which files a data path means, what they are called, and which paths are refused."""

import os
from pathlib import Path

import pytest

from mindbatch.dataset.data_files import DataFile, find_files
from mindbatch.io.errors import ConfigError
from mindbatch.io.storage import Storage
from mindbatch.ledger.run_folder import RunFolder
from small_runs import make_run

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
    return "\n".join(caught.value.faults)


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


def test_patterns(folder: Path) -> None:
    assert names(folder / "*.jsonl") == ["b.jsonl"]
    assert names(folder / "**/*.jsonl") == ["b.jsonl", "sub/d.jsonl"]
    assert names(folder / "**/**/[de].*") == ["d.jsonl", "e.CSV.ZST"]
    assert fault(folder / "*.xyz") == f"data.path='{folder}/*.xyz': no file matches"


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


def test_home_and_relative_paths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert [file.path for file in find_files("~/sub/*.jsonl")] == [folder / "sub/d.jsonl"]
    monkeypatch.chdir(folder)
    assert names("b.jsonl") == ["b.jsonl"]
    assert names("*/*.jsonl") == ["d.jsonl"]


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
