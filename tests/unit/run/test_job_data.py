"""What a batch job reads: standard input, chosen rows, templates; its index of the rows."""

import errno
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.faulty_storage import FailingStorage
from mindbatch.dataset.rows import DataRow
from mindbatch.io.children import AnsweringProcess, ChildDied, ProcessorTimeUsedUp
from mindbatch.io.errors import EXIT_DONE, ConfigError
from mindbatch.io.storage import Storage, StorageError
from mindbatch.ledger.entries import Entry
from mindbatch.ledger.ledger import Place
from mindbatch.run.index import RowIndex
from mindbatch.run.survey import Selection, spool_standard_input
from stub_job import (
    interrupted,
    job_config,
    lines_of,
    make_job,
    never,
    results,
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
    assert caught.value.faults == (f"data.path: {data}: holds no row",)


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


def data_row(key: str, text: str = "x", line: int = 1) -> DataRow:
    return DataRow(key=key, source="rows.jsonl", line=line, content={"text": text})


def outcome(item: DataRow, kind: str = "result", offset: int = 0) -> tuple[Entry, Place]:
    return Entry(item.key, item.digest, kind, {}), Place(0, offset, 10)  # type: ignore[arg-type]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[RowIndex]:
    with RowIndex(tmp_path / "index.sqlite") as index:
        yield index


def fill(index: RowIndex, *keys: str) -> list[DataRow]:
    rows = [data_row(key, line=line) for line, key in enumerate(keys, start=1)]
    for position, item in enumerate(rows):
        index.add(position, position, item)
    index.close_loading()
    return rows


def pending(index: RowIndex) -> list[str]:
    return [item.key for item in index.pending()]


def test_what_the_ledger_has_of_the_same_content_is_not_pending(index: RowIndex) -> None:
    rows = fill(index, "a", "b", "c", "d")
    entries = [outcome(rows[0], "error"), outcome(rows[0], offset=50), outcome(rows[2], "error")]
    other = [outcome(data_row("b", "other")), outcome(data_row("d", "other"), "error")]
    assert index.settle([*entries, *other, outcome(data_row("gone"))]) == ([("b", "rows.jsonl:2")], 1, 1)
    assert pending(index) == ["b", "d"]
    assert (index.count("result"), index.count("error"), index.count(None)) == (1, 1, 2)
    assert [place for _, place in index.in_order()][0] == Place(0, 50, 10)  # the last one holds


def test_marks_take_rows_out_while_they_are_read(index: RowIndex) -> None:
    fill(index, *map(str, range(1200)))
    seen = []
    for item in index.pending():
        seen.append(item.key)
        index.mark(item.key, "result", Place(1, 2, 3))
    assert seen == [str(number) for number in range(1200)]
    assert pending(index) == []
    assert {place for _, place in index.in_order()} == {Place(1, 2, 3)}
    assert index.count("result") == len(seen)


def test_keys_that_stand_twice_name_both_lines_and_are_counted(index: RowIndex) -> None:
    keys = [f"k{number}" for number in range(12)] * 2
    with pytest.raises(ConfigError) as caught:
        fill(index, *keys)
    assert caught.value.faults[0].startswith("rows.jsonl:13: key 'k0' stands on line 1 of rows.jsonl already")
    assert len(caught.value.faults) == 11
    assert caught.value.faults[-1] == "and 2 more keys stand twice"


@given(st.integers(0, 40), st.integers(0, 12), st.none() | st.integers(1, 12), st.none() | st.integers(0, 3))
def test_a_choice_is_a_part_of_the_order(count: int, skip: int, limit: int | None, seed: int | None) -> None:
    selection = Selection(shuffle_seed=seed, skip=skip, limit=limit)
    order = sorted(range(count), key=selection.rank)
    with RowIndex(Path(":memory:")) as index:
        for position in range(count):
            index.add(position, selection.rank(position), data_row(str(position)))
        index.close_loading(skip, limit)
        expected = order[skip:] if limit is None else order[skip : skip + limit]
        assert pending(index) == [str(position) for position in expected]
        assert [item.key for item, _ in index.in_order()] == [str(position) for position in sorted(expected)]


def test_an_index_that_cannot_be_written_is_an_error_of_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="index of the rows cannot be written"):
        RowIndex(tmp_path / "nowhere/index.sqlite")
