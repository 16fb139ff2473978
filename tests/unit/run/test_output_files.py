"""The files of a run: made in the format asked for, whole or not at all, errors beside the results."""

import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mindbatch.io.storage import Storage, StorageError
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.run.result_files import open_outputs
from mindbatch.run.result_rows import OutputOptions
from output_rows import failed, finished, generation

FORMATS = ["jsonl", "openai", "csv", "parquet"]
OPTIONS = OutputOptions(fingerprint="f", model="m")


class FullDisk(Storage):
    """Takes no more than a few bytes."""

    def write(self, file: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("format", FORMATS)
def test_results_and_errors_in_the_order_given(format: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with open_outputs(format, folder, OPTIONS) as (add, add_error):
        add(finished("b"))
        add_error(failed("z"))
        add(finished("a"))
        assert not folder.results(format).exists()
    data = folder.results(format).read_bytes()
    if format == "parquet":
        assert pq.read_table(folder.results(format))["key"].to_pylist() == ["b", "a"]
    else:
        assert 0 < data.index(b"b") < data.rindex(b"a")
    (error,) = map(json.loads, folder.errors.read_text().splitlines())
    assert error["custom_id" if format == "openai" else "key"] == "z"
    assert sorted(os.listdir(tmp_path)) == sorted([folder.results(format).name, "errors.jsonl"])


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("format", FORMATS)
def test_an_interrupt_leaves_the_older_files(format: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.results(format).write_text("old results")
    folder.errors.write_text("old errors")

    def interrupted() -> None:
        with open_outputs(format, folder, OPTIONS) as (add, add_error):
            add(finished())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert folder.results(format).read_text() == "old results"
    assert folder.errors.read_text() == "old errors"
    assert len(os.listdir(tmp_path)) == 2


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("format", FORMATS)
def test_a_full_disk_leaves_the_older_files_and_says_so(format: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.results(format).write_text("old results")
    folder.errors.write_text("old errors")

    def fill() -> None:
        with open_outputs(format, folder, OPTIONS, FullDisk()) as (add, add_error):
            for i in range(2000):
                add(finished(str(i), generation(text=os.urandom(1000).hex())))

    with pytest.raises(StorageError, match="No space left on device"):
        fill()
    assert folder.results(format).read_text() == "old results"
    assert folder.errors.read_text() == "old errors"
    assert len(os.listdir(tmp_path)) == 2


def test_errors_of_an_earlier_run_go_when_there_are_none(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.errors.write_text("old errors")
    with open_outputs("jsonl", folder, OPTIONS) as (add, add_error):
        add(finished())
    assert folder.errors.read_bytes() == b""


def test_rows_reach_the_disk_before_the_end(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with open_outputs("jsonl", folder, OPTIONS) as (add, add_error):
        for i in range(30):
            add(finished(str(i), generation(text="x" * 100_000)))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) > 1_000_000
