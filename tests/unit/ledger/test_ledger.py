"""The ledger: groups, places, sessions, rows of other runs; where it is damaged, good entries are kept."""

import errno
from pathlib import Path

import pytest

from harness.faulty_storage import CountingStorage, FailingStorage
from harness.ledger_session import entry
from mindbatch.io.errors import ConfigError
from mindbatch.io.storage import StorageError
from mindbatch.ledger import ledger as module
from mindbatch.ledger.entries import Entry, encode
from mindbatch.ledger.ledger import ComputedWith, EntryLocation, Ledger
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
        ledger.read(EntryLocation(1, offset, 20))
    path = folder.ledger
    assert str(caught.value) == (
        f"{path}: the entry at byte {offset} is damaged; run the same command again: that row is done anew"
    )


def test_a_ledger_that_has_gone_is_one_line(folder: RunFolder) -> None:
    with (
        opened(folder) as ledger,
        pytest.raises(StorageError, match=r"\.jsonl: cannot be read \(No such"),
    ):
        ledger.read(EntryLocation(1, 0, 20))


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


def test_rows_of_other_settings_are_refused_before_anything_is_read(folder: RunFolder) -> None:
    write(folder, entry(0))
    with pytest.raises(ConfigError) as caught:
        Ledger(folder, "0" * 32).recover()
    assert caught.value.lines == (
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


def fill(folder: RunFolder, numbers: range) -> None:
    write(folder, *map(entry, numbers))


def found_in(folder: RunFolder) -> tuple[list[str], list[str]]:
    """Keys and notes; every entry is as it was written."""
    with Ledger(folder, PRINT) as ledger:
        places = {found.key: place for found, place in ledger.recover()}
        for key, place in places.items():
            assert ledger.read(place) == entry(int(key))
        return list(places), ledger.notes


def put(folder: RunFolder, content: bytes) -> None:
    folder.ledger.unlink(missing_ok=True)  # ext4 takes long to write over a file
    folder.ledger.write_bytes(content)


def ends_of_lines(content: bytes) -> list[int]:
    return [place + 1 for place, byte in enumerate(content) if byte == ord("\n")]


@pytest.mark.slow
def test_a_ledger_may_end_at_every_byte(folder: RunFolder) -> None:
    fill(folder, range(3))
    whole = folder.ledger.read_bytes()
    ends = ends_of_lines(whole)
    for size in range(ends[0], len(whole)):
        put(folder, whole[:size])
        num_good = sum(end <= size for end in ends) - 1
        torn = size - max(end for end in ends if end <= size)
        expected = [f"{folder.ledger}: its last {torn} bytes are torn; what was there runs again"]
        assert found_in(folder) == ([str(n) for n in range(num_good)], expected if torn else [])
        assert folder.ledger.read_bytes() == whole[:size], "looking changes nothing"
        fill(folder, range(num_good, 3))
        assert folder.ledger.read_bytes().startswith(whole[: size - torn])
        assert found_in(folder) == (["0", "1", "2"], [])


def test_zeros_after_the_end_are_cut_off(folder: RunFolder) -> None:
    """A file that grew without its data: power went before the pages were written."""
    fill(folder, range(2))
    whole = folder.ledger.read_bytes()
    put(folder, whole + bytes(5000))
    assert found_in(folder)[0] == ["0", "1"]
    fill(folder, range(2, 3))
    assert folder.ledger.read_bytes().startswith(whole + b'{"ledger"')
    assert found_in(folder) == (["0", "1", "2"], [])


@pytest.mark.slow
def test_every_damaged_byte_costs_no_more_than_the_lines_it_touches(folder: RunFolder) -> None:
    fill(folder, range(4))
    whole = folder.ledger.read_bytes()
    ends = ends_of_lines(whole)
    for place in range(ends[0], len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x41
        put(folder, damaged)
        line = sum(end <= place for end in ends)
        lost = {str(line - 1), str(line)} if whole[place : place + 1] == b"\n" else {str(line - 1)}
        keys, notes = found_in(folder)
        assert keys == [str(n) for n in range(4) if str(n) not in lost]
        assert len(notes) == 1


def test_damage_in_the_middle_is_named_and_done_again(folder: RunFolder) -> None:
    fill(folder, range(9))
    lines = folder.ledger.read_bytes().splitlines(keepends=True)
    for number in range(1, 8):
        lines[number] = lines[number].replace(b'"key"', b'"kex"')
    put(folder, b"".join(lines))
    keys, notes = found_in(folder)
    assert keys == ["7", "8"]
    assert notes == [f"{folder.ledger}: damaged at line 2, 3, 4, 5, 6 and 2 more; what was there runs again"]
    fill(folder, range(7))
    assert sorted(found_in(folder)[0]) == [str(n) for n in range(9)]


def test_rows_of_a_session_whose_begin_is_damaged_run_again(folder: RunFolder) -> None:
    """Without it nobody knows what they were computed with; they are not cut off."""
    fill(folder, range(2))
    first = folder.ledger.read_bytes()
    fill(folder, range(2, 3))
    whole = folder.ledger.read_bytes()
    for content in (b"x" + whole[1:], b"\n" + whole[1:], whole.replace(b'"ledger"', b'"ledgex"', 1)):
        put(folder, content)
        keys, notes = found_in(folder)
        assert keys == ["2"]
        assert "damaged at line 1, 2, 3" in notes[0]
    fill(folder, range(2))
    assert found_in(folder)[0] == ["2", "0", "1"]
    put(folder, whole[: len(first)] + whole[len(first) :].replace(b'"ledger"', b'"ledgex"'))
    assert found_in(folder) == (
        ["0", "1"],
        [f"{folder.ledger}: damaged at line 4, 5; what was there runs again"],
    )


@pytest.mark.parametrize("content", [b"", bytes(100), b"x\ny\n"])
def test_a_file_without_a_good_line_is_begun_anew(folder: RunFolder, content: bytes) -> None:
    put(folder, content)
    torn = f"{folder.ledger}: its last {len(content)} bytes are torn; what was there runs again"
    assert found_in(folder) == ([], [torn] if content else [])
    fill(folder, range(2))
    assert found_in(folder) == (["0", "1"], [])
