"""Ledgers that end anywhere, or are damaged anywhere: good entries are kept, the rest runs again."""

from pathlib import Path

import pytest

from harness.faulty_storage import CountingStorage
from harness.ledger_session import entry
from mindbatch.io.storage import Storage
from mindbatch.ledger.entries import encode
from mindbatch.ledger.ledger import Ledger
from mindbatch.ledger.run_folder import RunFolder

PRINT = "f" * 32


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    found = RunFolder(tmp_path / "run")
    found.make(Storage())
    return found


def fill(folder: RunFolder, numbers: range) -> None:
    with Ledger(folder, PRINT, CountingStorage()) as ledger:
        list(ledger.recover())
        for number in numbers:
            ledger.append(entry(number))


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


def test_entries_of_no_session_are_no_rows(folder: RunFolder) -> None:
    put(folder, encode(entry(0), 1) + encode(entry(1), 1))
    assert found_in(folder)[0] == []
