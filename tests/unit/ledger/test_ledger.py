"""The ledger: groups, places, sessions, and rows of other runs."""

import errno
from pathlib import Path

import pytest

from harness.faulty_storage import CountingStorage, FailingStorage
from harness.ledger_session import entry
from mindbatch.io.errors import ConfigError
from mindbatch.io.storage import StorageError
from mindbatch.ledger import ledger as module
from mindbatch.ledger.entries import Entry, encode
from mindbatch.ledger.ledger import ComputedWith, Ledger, Place
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


def opened(folder: RunFolder, storage: CountingStorage | None = None) -> Ledger:
    ledger = Ledger(folder, PRINT, storage or CountingStorage())
    list(ledger.recover())
    return ledger


def write(folder: RunFolder, *entries: Entry) -> None:
    with opened(folder) as ledger:
        for each in entries:
            ledger.append(each)


def found(folder: RunFolder) -> list[Entry]:
    with Ledger(folder, PRINT) as ledger:
        return [ledger.read(place) for _, place in ledger.recover()]


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
        (one, first), (two, second) = ledger.recover()
        assert (one.key, one.row, one.kind) == ("7", "row7", "result")
        assert (two.key, two.row, two.kind) == ("bad", "row", "error")
        assert ledger.read(second) == error("bad")
        assert ledger.num_safe == 2
        content = folder.ledger.read_bytes()
        assert content[first.offset :][: first.length + second.length].count(b"\n") == 2


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
        ledger.read(Place(1, offset, 20))
    path = folder.ledger
    assert str(caught.value) == (
        f"{path}: the entry at byte {offset} is damaged; run the same command again: that row is done anew"
    )


def test_a_ledger_that_has_gone_is_one_line(folder: RunFolder) -> None:
    with (
        opened(folder) as ledger,
        pytest.raises(StorageError, match=r"\.jsonl: cannot be read \(No such"),
    ):
        ledger.read(Place(1, 0, 20))


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
    assert not folder.ledger.exists()


def test_a_failed_commit_leaves_a_clean_end(folder: RunFolder) -> None:
    write(folder, entry(0))
    whole = folder.ledger.read_bytes()
    counting = CountingStorage()
    with opened(folder, storage=counting) as ledger:
        ledger.append(entry(1))
    begun = folder.ledger.read_bytes()[: -len(encode(entry(1), 2))]
    folder.ledger.write_bytes(whole)
    last_write = max(place for place, name in enumerate(counting.operations) if name == "write")
    ledger = opened(folder, storage=FailingStorage(last_write, errno.ENOSPC))
    ledger.append(entry(1))
    with pytest.raises(StorageError, match=r"\(No space left on device\); 1 finished rows are safe"):
        ledger.commit()
    ledger.close()
    assert folder.ledger.read_bytes() == begun


def test_a_later_session_comes_later(folder: RunFolder) -> None:
    """A row that failed, and was run again, has the later outcome."""
    bodies = []
    for session in range(4):
        bodies.append(Entry("k", "row", "error", {"stage": "prompt", "reason": str(session)}))
        write(folder, bodies[-1])
    assert found(folder) == bodies


def test_rows_of_other_settings_are_refused_before_anything_is_read(folder: RunFolder) -> None:
    write(folder, entry(0))
    with pytest.raises(ConfigError) as caught:
        Ledger(folder, "0" * 32).recover()
    assert caught.value.faults == (
        f"{folder.ledger}: written with other settings (fingerprint {PRINT}; this run has {'0' * 32})",
    )


def test_a_session_of_other_settings_behind_a_damaged_line_is_not_believed(folder: RunFolder) -> None:
    write(folder, entry(0))
    folder.ledger.write_bytes(b"x" + folder.ledger.read_bytes()[1:])
    assert found(folder) == []
    with Ledger(folder, "0" * 32, CountingStorage()) as ledger:
        assert list(ledger.recover()) == []
        ledger.append(entry(1))
    assert found(folder) == []


def test_another_format_is_refused(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FORMAT", 3)
    write(folder, entry(0))
    monkeypatch.setattr(module, "FORMAT", 2)
    with pytest.raises(
        ConfigError, match=r"written in format 3 of the ledger; this mindbatch reads format 2"
    ):
        Ledger(folder, PRINT).recover()


def test_each_row_says_what_it_was_computed_with(folder: RunFolder) -> None:
    kinds: list[ComputedWith] = [{}, {"model_parallel": 1}, {"model_parallel": 1}, {"model_parallel": 2}]
    for number, kind in enumerate(kinds):
        with opened(folder) as ledger:
            ledger.computed_with = kind
            place = ledger.append(entry(number))
            assert ledger.computed_with_in(place.session) == kind
        if number == 2:  # a process that was killed tore its last line
            with folder.ledger.open("ab") as file:
                file.write(b'{"key"')
    assert found(folder) == [entry(number) for number in range(4)]
    with Ledger(folder, PRINT) as ledger:
        sessions = [place.session for _, place in ledger.recover()]
        assert [ledger.computed_with_in(session) for session in sessions] == kinds
        assert ledger.notes == [], "what was torn is cut off"


def test_nothing_is_appended_before_all_was_recovered(folder: RunFolder) -> None:
    write(folder, entry(0), entry(1))
    with Ledger(folder, PRINT, CountingStorage()) as ledger:
        next(ledger.recover())
        with pytest.raises(AssertionError, match="append before recover"):
            ledger.append(entry(2))
    assert found(folder) == [entry(0), entry(1)]
