"""What a batch job reads: standard input, chosen rows, templates; its index of the rows."""

import errno
import io
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.faulty_storage import FailingStorage
from mindbatch.io.children import AnsweringProcess, ChildDied, ProcessorTimeUsedUp
from mindbatch.io.errors import EXIT_DONE, ConfigError
from mindbatch.io.storage import Storage, StorageError
from mindbatch.run.index import RowIndex
from mindbatch.run.survey import spool_standard_input
from stub_job import (
    interrupted,
    job_config,
    lines_of,
    make_job,
    never,
    results,
    write_rows,
)


def test_standard_input_is_kept_for_the_next_session(tmp_path: Path, data: Path) -> None:
    make_job(job_config(data, tmp_path / "whole")).run()
    config = job_config("-", tmp_path / "run")
    interrupted(config, 5, stdin=data.read_bytes())
    assert make_job(config, stdin=b"").run() == EXIT_DONE
    assert results(tmp_path / "run") == results(tmp_path / "whole")
    assert make_job(config, load=never, stdin=data.read_bytes()).run() == EXIT_DONE
    with pytest.raises(ConfigError, match="the data has changed"):
        make_job(config, load=never, stdin=b'{"prompt": "other"}\n').run()
    assert make_job(config, load=never, stdin=b"").run() == EXIT_DONE
    with pytest.raises(ConfigError, match="standard input is empty"):
        make_job(job_config("-", tmp_path / "other"), load=never, stdin=b"").run()


def test_standard_input_that_is_kept_survives_a_new_beginning(tmp_path: Path, data: Path) -> None:
    make_job(job_config("-", tmp_path / "run"), stdin=data.read_bytes() + b"no row\n").run()
    options: dict[str, Any] = {"decoding": {"max_new_tokens": 5}, "output": {"on_mismatch": "overwrite"}}
    for _ in range(2):
        make_job(job_config("-", tmp_path / "run", **options), stdin=b"").run()
        assert len(lines_of(tmp_path / "run/results.jsonl")) == 30
        (error,) = lines_of(tmp_path / "run/errors.jsonl")
        assert (error["source"], error["line"]) == ("standard input", 31)
    other = b'{"prompt": "other"}\n'
    make_job(job_config("-", tmp_path / "run", **options), stdin=other).run()
    assert (tmp_path / "run/input.spool").read_bytes() == other


def keys_of(data: Path, folder: Path, **options: Any) -> list[str]:
    make_job(job_config(data, folder, **options)).run()
    return [line["key"] for line in lines_of(folder / "results.jsonl")]


def test_rows_can_be_chosen(tmp_path: Path, data: Path) -> None:
    assert keys_of(data, tmp_path / "a", skip=3, limit=2) == ["3", "4"]
    assert keys_of(data, tmp_path / "b", filter_keys=["row-7", "row-2"], key_column="id") == [
        "row-2",
        "row-7",
    ]
    some = keys_of(data, tmp_path / "c", shuffle_seed=1, limit=10)
    others = keys_of(data, tmp_path / "d", shuffle_seed=1, skip=10)
    assert sorted(some + others, key=int) == [str(number) for number in range(30)]
    assert some == sorted(some, key=int)
    assert some != [str(number) for number in range(10)]
    assert some != keys_of(data, tmp_path / "e", shuffle_seed=2, limit=10)
    with pytest.raises(ConfigError, match="no row is chosen"):
        keys_of(data, tmp_path / "f", skip=30)


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.touch()
    with pytest.raises(ConfigError) as caught:
        keys_of(data, tmp_path / "a", skip=3)
    assert caught.value.lines == (f"data.path: {data}: holds no row",)


def test_the_order_of_the_rows_changes_no_result(tmp_path: Path, data: Path) -> None:
    options: dict[str, Any] = {"key_column": "id", "decoding": {"do_sample": True, "temperature": 0.9}}
    make_job(job_config(data, tmp_path / "a", **options)).run()
    make_job(job_config(data, tmp_path / "b", shuffle_seed=5, **options), batch_size=9).run()
    assert results(tmp_path / "a") == results(tmp_path / "b")
    lines = data.read_bytes().splitlines(keepends=True)
    data.write_bytes(b"".join(reversed(lines)))
    make_job(job_config(data, tmp_path / "c", **options)).run()
    assert sorted(results(tmp_path / "c").splitlines()) == sorted(results(tmp_path / "a").splitlines())


def test_a_template_is_part_of_the_run(tmp_path: Path, data: Path) -> None:
    config = job_config(data, tmp_path / "run", template="{{ id }}: {{ prompt }}", limit=2)
    make_job(config).run()
    assert lines_of(tmp_path / "run/results.jsonl")[1]["prompt"] == "row-1: Question 1: why "
    manifest = orjson.loads((tmp_path / "run/manifest.json").read_bytes())
    assert manifest["digests"]["data.template"].startswith("xxh3-128:")
    with pytest.raises(ConfigError, match=r"data\.template .*id.* -> .*prompt"):
        make_job(job_config(data, tmp_path / "run", template="{{ prompt }}"), load=never).run()


@pytest.mark.parametrize(
    "limit",
    [
        ProcessorTimeUsedUp(),
        pytest.param(ChildDied("its process ended with signal 6"), marks=pytest.mark.slow),
    ],
)
def test_a_finished_row_is_not_judged_again_by_the_limits_of_a_template(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, limit: Exception
) -> None:
    config = job_config(data, tmp_path / "run", template="{{ id }}: {{ prompt }}", limit=6)
    assert make_job(config).run() == EXIT_DONE
    first = results(tmp_path / "run")
    ask = AnsweringProcess.ask

    def slow_now(process: AnsweringProcess, request: bytes, most_bytes: int) -> Any:
        if b"variables" in request and process.limits.seconds <= 5.0:
            raise limit
        return ask(process, request, most_bytes)

    monkeypatch.setattr(AnsweringProcess, "ask", slow_now)
    assert make_job(config, load=never).run() == EXIT_DONE
    assert results(tmp_path / "run") == first


def test_a_finished_row_that_cannot_be_read_any_more_does_not_vanish(tmp_path: Path, data: Path) -> None:
    config = job_config(data, tmp_path / "run", key_column="id", limit=2)
    assert make_job(config).run() == EXIT_DONE
    first = results(tmp_path / "run")
    data.write_text('{"id": "row-0", "prompt": 7}\n{"id": "row-1", "prompt": "b"}\n')
    with pytest.raises(ConfigError, match=r"the data has changed since: .*row-0 .*row-1"):
        make_job(config, load=never).run()
    assert results(tmp_path / "run") == first


def test_a_pattern_over_the_output_folder_gives_the_same_rows_each_time(data: Path, tmp_path: Path) -> None:
    counts = []
    for folder in ("runs/a", "runs/a", "runs/b"):
        config = job_config(f"{tmp_path}/**/*.jsonl", tmp_path / folder, key_column="id")
        assert make_job(config).run() == EXIT_DONE
        counts.append(len(lines_of(tmp_path / folder / "results.jsonl")))
    assert counts == [30, 30, 30]


class TornPipe(io.RawIOBase):
    """A pipe that gives some bytes and then fails."""

    def __init__(self) -> None:
        self._given = False

    def read(self, size: int | None = -1, /) -> bytes:
        if self._given:
            raise OSError(5, "Input/output error")
        self._given = True
        return b"some"


def test_all_of_the_stream_is_kept(tmp_path: Path) -> None:
    content = bytes(range(256)) * 20_000
    assert spool_standard_input(tmp_path / "input.spool", io.BytesIO(content)) == len(content)
    assert (tmp_path / "input.spool").read_bytes() == content
    assert spool_standard_input(tmp_path / "empty.spool", io.BytesIO()) == 0


@pytest.mark.parametrize(
    ("stream", "storage", "error", "line"),
    [
        (
            TornPipe(),
            Storage(),
            ConfigError,
            "data.path=-: standard input cannot be read (Input/output error)",
        ),
        (
            io.BytesIO(b"x"),
            FailingStorage(1, errno.ENOSPC),
            StorageError,
            "{path}: cannot be written (No space left on device)",
        ),
    ],
)
def test_what_was_there_stays_when_it_fails(
    tmp_path: Path, stream: Any, storage: Storage, error: type[Exception], line: str
) -> None:
    path = tmp_path / "input.spool"
    path.write_bytes(b"old")
    with pytest.raises(error) as caught:
        spool_standard_input(path, stream, storage)
    assert str(caught.value) == line.format(path=path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"old"


def test_keys_that_stand_twice_name_both_lines_and_are_counted(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.jsonl", 12)
    data.write_bytes(data.read_bytes() * 2)
    with pytest.raises(ConfigError) as caught:
        make_job(job_config(data, tmp_path / "run", key_column="id"), load=never).run()
    first, *_, last = caught.value.lines
    assert first.startswith("rows.jsonl:13: key 'row-0' stands on line 1 of rows.jsonl already")
    assert last == "and 2 more keys stand twice"
    assert len(caught.value.lines) == 11


def test_rows_of_the_index_come_in_pages(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_job(job_config(data, tmp_path / "whole")).run()
    monkeypatch.setattr("mindbatch.run.index._ROWS_AT_ONCE", 4)
    assert make_job(job_config(data, tmp_path / "run")).run() == EXIT_DONE
    assert results(tmp_path / "run") == results(tmp_path / "whole")


def test_an_index_that_cannot_be_written_is_an_error_of_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="index of the rows cannot be written"):
        RowIndex(tmp_path / "nowhere/index.sqlite")
