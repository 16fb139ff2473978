"""The ledger: groups, places, parts, several writers, and parts of other runs."""

import errno
import itertools
from pathlib import Path
from typing import Any

import pytest

from harness.faulty_storage import CountingStorage, FailingStorage
from harness.ledger_session import entry
from mindbatch.io.errors import ConfigError
from mindbatch.io.storage import StorageError
from mindbatch.ledger import ledger as module
from mindbatch.ledger.entries import Entry
from mindbatch.ledger.ledger import Ledger, Place
from mindbatch.ledger.part import PartName, list_parts, make_part
from mindbatch.ledger.run_folder import RunFolder

PRINT = "f" * 32


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    found = RunFolder(tmp_path / "run")
    found.make(CountingStorage())
    return found


def opened(folder: RunFolder, writer: int = 0, storage: CountingStorage | None = None) -> Ledger:
    ledger = Ledger(folder, PRINT, storage or CountingStorage(), writer)
    list(ledger.recover())
    return ledger


def write(folder: RunFolder, *entries: Entry, writer: int = 0) -> None:
    with opened(folder, writer) as ledger:
        for each in entries:
            ledger.append(each)


def found(folder: RunFolder) -> list[Entry]:
    with Ledger(folder, PRINT) as ledger:
        return [ledger.read(each.place) for each in ledger.recover()]


def error(key: str) -> Entry:
    return Entry(key, "row", "error", {"stage": "prompt", "reason": "too long"})


def test_a_commit_is_one_write_and_one_sync_however_many_rows(folder: RunFolder) -> None:
    storage = CountingStorage()
    with opened(folder, storage=storage) as ledger:
        ledger.append(entry(0))
        ledger.commit()
        storage.operations.clear()
        for number in range(1, 50):
            ledger.append(entry(number))
        assert storage.operations == []
        ledger.commit()
        assert storage.operations == ["write", "sync"]
        ledger.commit()
        assert storage.operations == ["write", "sync"]
        assert ledger.num_safe == 50


def test_recovered_entries_say_what_they_are_and_where(folder: RunFolder) -> None:
    write(folder, entry(7), error("bad"))
    with Ledger(folder, PRINT) as ledger:
        one, two = ledger.recover()
        assert (one.key, one.row, one.kind) == ("7", "row7", "result")
        assert (two.key, two.row, two.kind) == ("bad", "row", "error")
        assert ledger.read(two.place) == error("bad")
        assert ledger.num_safe == 2
        content = (folder.parts / "part-000-00000.jsonl").read_bytes()
        assert content[one.place.offset :][: one.place.length + two.place.length].count(b"\n") == 2


def test_an_entry_can_be_read_before_and_after_its_commit(folder: RunFolder) -> None:
    with opened(folder) as ledger:
        places = [ledger.append(entry(number)) for number in range(3)]
        assert [ledger.read(place) for place in places] == [entry(number) for number in range(3)]
        ledger.commit()
        places.append(ledger.append(entry(3)))
        assert [ledger.read(place) for place in places] == [entry(number) for number in range(4)]


@pytest.mark.parametrize("offset", [0, 1, 10_000])
def test_a_place_that_holds_no_entry_is_one_line(folder: RunFolder, offset: int) -> None:
    write(folder, entry(0))
    with opened(folder) as ledger, pytest.raises(StorageError) as caught:
        ledger.read(Place(0, offset, 20))
    path = folder.parts / "part-000-00000.jsonl"
    assert str(caught.value) == (
        f"{path}: the entry at byte {offset} is damaged; run the same command again: that row is done anew"
    )


def test_a_part_that_has_gone_is_one_line(folder: RunFolder) -> None:
    with (
        opened(folder) as ledger,
        pytest.raises(StorageError, match=r"00003\.jsonl: cannot be read \(No such"),
    ):
        ledger.read(Place(PartName(3, 0).number, 0, 20))


def test_rows_are_committed_by_number_size_and_age(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, storage = Clock(), CountingStorage()
    ledger = Ledger(folder, PRINT, storage, clock=clock)
    assert list(ledger.recover()) == []
    assert not ledger.commit_if_due(100.0)
    ledger.append(entry(0))
    clock.now = 1.0
    ledger.append(entry(1))
    assert not ledger.commit_if_due(1.0)
    assert ledger.commit_if_due(1.1)  # the oldest would wait 2.1 seconds
    assert ledger.num_safe == 2
    ledger.append(entry(2))
    clock.now = 2.9
    assert not ledger.commit_if_due(0.0)
    clock.now = 3.1
    assert ledger.commit_if_due(0.0)
    for number in range(3, 66):
        ledger.append(entry(number))
        assert not ledger.commit_if_due(0.0)
    ledger.append(entry(66))
    assert ledger.commit_if_due(0.0)
    assert ledger.num_safe == 67
    monkeypatch.setattr(module, "MAX_WAITING_BYTES", 10)
    ledger.append(entry(67))
    assert ledger.commit_if_due(0.0)
    ledger.close()


def test_what_waits_is_committed_at_the_end_and_not_before(folder: RunFolder) -> None:
    ledger = opened(folder)
    ledger.append(entry(0))
    assert found(folder) == []
    ledger.close()
    assert found(folder) == [entry(0)]


def test_sessions_go_on_in_the_same_part_until_it_is_full(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PART_BYTES", 1000)
    for number in range(30):
        write(folder, entry(number))
    assert found(folder) == [entry(number) for number in range(30)]
    sizes = [path.stat().st_size for path in sorted(folder.parts.iterdir())]
    assert 4 < len(sizes) < 12
    assert max(sizes) <= 1000
    assert min(sizes[:-1]) > 600


def test_an_entry_larger_than_a_part_has_one_for_itself(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PART_BYTES", 100)
    write(folder, entry(0), entry(1))
    assert found(folder) == [entry(0), entry(1)]


def test_many_parts_can_be_read_at_random(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PART_BYTES", 100)
    monkeypatch.setattr("mindbatch.ledger.ledger.MAX_OPEN_PARTS", 3)
    write(folder, *map(entry, range(10)))
    with Ledger(folder, PRINT) as ledger:
        places = [each.place for each in ledger.recover()]
        for number in (3, 9, 0, 3, 5, 7, 1, 0, 8):
            assert ledger.read(places[number]) == entry(number)


def test_a_session_without_a_row_writes_nothing(folder: RunFolder) -> None:
    storage = CountingStorage()
    opened(folder, storage=storage).close()
    assert storage.operations == []


def test_after_a_failed_write_nothing_more_is_taken_and_closing_is_quiet(folder: RunFolder) -> None:
    ledger = Ledger(folder, PRINT, FailingStorage(0, errno.EIO))
    assert list(ledger.recover()) == []
    for _ in range(2):
        with pytest.raises(StorageError, match="0 finished rows are safe"):
            ledger.append(entry(0))
    ledger.close()
    assert list(folder.parts.iterdir()) == []


def test_a_failed_commit_leaves_a_clean_end(folder: RunFolder) -> None:
    write(folder, entry(0))
    whole = (folder.parts / "part-000-00000.jsonl").read_bytes()
    counting = CountingStorage()
    with opened(folder, storage=counting) as ledger:
        ledger.append(entry(1))
    (folder.parts / "part-000-00000.jsonl").write_bytes(whole)
    ledger = opened(folder, storage=FailingStorage(counting.operations.index("write"), errno.ENOSPC))
    ledger.append(entry(1))
    with pytest.raises(StorageError, match=r"\(No space left on device\); 1 finished rows are safe"):
        ledger.commit()
    ledger.close()
    assert (folder.parts / "part-000-00000.jsonl").read_bytes() == whole


def test_writers_have_their_own_parts_at_the_same_time(folder: RunFolder) -> None:
    ledgers = [opened(folder, writer) for writer in range(3)]
    for number in range(9):
        ledgers[number % 3].append(entry(number))
    for ledger in ledgers:
        ledger.close()
    assert sorted(int(each.key) for each in found(folder)) == list(range(9))
    assert {name.writer for name in list_parts(folder.parts)} == {0, 1, 2}


@pytest.mark.parametrize("writers", list(itertools.permutations([0, 1, 2])))
def test_a_later_session_comes_later_whoever_writes(folder: RunFolder, writers: tuple[int, ...]) -> None:
    """A row that failed, and was run again by another process, has the later outcome."""
    bodies = []
    for session, writer in enumerate([*writers, *writers]):
        bodies.append(Entry("k", "row", "error", {"stage": "prompt", "reason": str(session)}))
        write(folder, bodies[-1], writer=writer)
    assert found(folder) == bodies


def test_parts_of_other_settings_are_refused_before_anything_is_read(folder: RunFolder) -> None:
    write(folder, entry(0))
    write(folder, entry(1), writer=1)
    with pytest.raises(ConfigError) as caught:
        Ledger(folder, "0" * 32).recover()
    paths = [folder.parts / "part-000-00000.jsonl", folder.parts / "part-001-00001.jsonl"]
    assert caught.value.faults == tuple(
        f"{path}: written with other settings (fingerprint {PRINT}; this run has {'0' * 32})"
        for path in paths
    )


def test_parts_of_a_later_format_are_refused(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mindbatch.ledger.part.FORMAT", 2)
    write(folder, entry(0))
    monkeypatch.setattr("mindbatch.ledger.part.FORMAT", 1)
    with pytest.raises(
        ConfigError, match=r"written in format 2 of the ledger; this mindbatch reads format 1"
    ):
        Ledger(folder, PRINT).recover()


def test_other_files_among_the_parts_are_no_parts(folder: RunFolder) -> None:
    for name in (
        "part-1-2.jsonl",
        "notes.txt",
        ".part-000-00000.jsonl.0123456789abcdef",
        "part-000-00000.jsonl~",
    ):
        (folder.parts / name).write_text("x\n")
    write(folder, entry(0))
    assert found(folder) == [entry(0)]


def test_numbers_of_parts_come_back() -> None:
    for name in (PartName(0, 0), PartName(0, 999), PartName(99_999, 12)):
        assert PartName.from_number(name.number) == name


def test_rows_that_are_computed_otherwise_have_a_part_of_their_own(folder: RunFolder) -> None:
    kinds = [None, {"model_parallel": 1}, {"model_parallel": 1}, {"model_parallel": 2}]
    for number, kind in enumerate(kinds):
        with opened(folder) as ledger:
            ledger.computed_with = kind
            ledger.append(entry(number))
        if number == 2:  # a process that was killed tore its last line
            with (folder.parts / "part-000-00001.jsonl").open("ab") as part:
                part.write(b'{"key"')
    assert found(folder) == [entry(number) for number in range(4)]
    with opened(folder) as ledger:
        assert ledger.notes == [], "what was torn is cut off, though nothing was appended there"
        parts = [name.number for name in list_parts(folder.parts)]
        assert [ledger.part_computed_with(part) for part in parts] == [None, *kinds[2:]]


@pytest.mark.parametrize("forged", [3, [1], {"model_parallel": [2]}])
def test_a_forged_head_of_a_part_says_nothing_of_how_it_was_computed(folder: RunFolder, forged: Any) -> None:
    make_part(PartName(0, 0), folder.parts, PRINT, CountingStorage(), forged)
    with opened(folder) as ledger:
        assert ledger.part_computed_with(PartName(0, 0).number) is None
