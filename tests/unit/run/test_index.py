"""The index of rows: places, keys, what became of each, and memory that does not grow."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.dataset.rows import DataRow, RowFailure
from mindbatch.io.errors import ConfigError
from mindbatch.io.storage import StorageError
from mindbatch.ledger.entries import Entry
from mindbatch.ledger.ledger import Place
from mindbatch.run.index import RowIndex
from mindbatch.run.survey import Selection


def row(key: str, text: str = "x", line: int = 1) -> DataRow:
    return DataRow(key=key, source="rows.jsonl", line=line, content={"text": text})


def outcome(item: DataRow, kind: str = "result", offset: int = 0) -> tuple[Entry, Place]:
    return Entry(item.key, item.digest, kind, {}), Place(0, offset, 10)  # type: ignore[arg-type]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[RowIndex]:
    with RowIndex(tmp_path / "index.sqlite") as index:
        yield index


def fill(index: RowIndex, *keys: str) -> list[DataRow]:
    rows = [row(key, line=line) for line, key in enumerate(keys, start=1)]
    for position, item in enumerate(rows):
        index.add(position, position, item)
    index.close_loading()
    return rows


def pending(index: RowIndex) -> list[str]:
    return [item.key for item in index.pending()]


def test_rows_come_back_as_they_were(index: RowIndex) -> None:
    rows = fill(index, "b", "a", "c")
    assert list(index.pending()) == rows
    assert [item for item, _ in index.in_order()] == rows


def test_what_the_ledger_has_is_not_pending(index: RowIndex) -> None:
    rows = fill(index, "a", "b", "c", "d")
    entries = [outcome(rows[0], "error"), outcome(rows[0], offset=50), outcome(rows[2], "error")]
    standing = index.settle([*entries, outcome(row("gone"))])
    assert standing == ([], 0, 1)
    assert pending(index) == ["b", "d"]
    assert (index.count("result"), index.count("error"), index.count(None)) == (1, 1, 2)
    assert [place for _, place in index.in_order()][0] == Place(0, 50, 10)  # the last one holds


def test_rows_that_failed_can_be_pending_again(index: RowIndex) -> None:
    rows = fill(index, "a", "b")
    index.settle([outcome(rows[0]), outcome(rows[1], "error")], errors_too=False)
    assert pending(index) == ["b"]


def test_a_result_for_another_content_is_told(index: RowIndex) -> None:
    rows = fill(index, "a", "b", "c")
    standing = index.settle(
        [outcome(row("b", "other")), outcome(row("c", "other"), "error"), outcome(rows[0])]
    )
    assert standing == ([("b", "rows.jsonl:2")], 1, 0)
    assert pending(index) == ["b", "c"]


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


def test_unusable_rows_keep_their_place_and_need_no_key(index: RowIndex) -> None:
    failures = [RowFailure(None, "rows.jsonl", line, "read", "bad") for line in (1, 2)]
    for position, failure in enumerate(failures):
        index.add(position, position, failure)
    index.add(2, 2, row("a"))
    index.close_loading()
    assert (index.num_rows, index.num_unusable) == (3, 2)
    assert index.failures(1) == failures[:1]
    assert [item for item, _ in index.in_order()] == [*failures, row("a")]


@given(st.integers(0, 40), st.integers(0, 12), st.none() | st.integers(1, 12), st.none() | st.integers(0, 3))
def test_a_choice_is_a_part_of_the_order(count: int, skip: int, limit: int | None, seed: int | None) -> None:
    selection = Selection(shuffle_seed=seed, skip=skip, limit=limit)
    order = sorted(range(count), key=selection.rank)
    with RowIndex(Path(":memory:")) as index:
        for position in range(count):
            index.add(position, selection.rank(position), row(str(position)))
        index.close_loading(skip, limit)
        expected = order[skip:] if limit is None else order[skip : skip + limit]
        assert pending(index) == [str(position) for position in expected]
        assert [item.key for item, _ in index.in_order()] == [str(position) for position in sorted(expected)]


def test_an_index_that_cannot_be_written_is_an_error_of_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="index of the rows cannot be written"):
        RowIndex(tmp_path / "nowhere/index.sqlite")
