"""Parts that end anywhere, or are damaged anywhere: good entries are kept, the rest runs again."""

from pathlib import Path

import pytest

from harness.faulty_storage import CountingStorage
from harness.ledger_session import entry
from mindbatch.io.storage import Storage
from mindbatch.ledger.entries import encode
from mindbatch.ledger.ledger import Ledger
from mindbatch.ledger.run_folder import RunFolder

PRINT = "f" * 32
NAME = "part-000-00000.jsonl"


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
        places = {found.key: found.place for found in ledger.recover()}
        for key, place in places.items():
            assert ledger.read(place) == entry(int(key))
        return list(places), ledger.notes


def part(folder: RunFolder) -> Path:
    return folder.parts / NAME


def put(folder: RunFolder, content: bytes) -> None:
    part(folder).unlink(missing_ok=True)  # ext4 takes long to write over a file
    part(folder).write_bytes(content)


def ends_of_lines(content: bytes) -> list[int]:
    return [place + 1 for place, byte in enumerate(content) if byte == ord("\n")]


@pytest.mark.slow
def test_a_part_may_end_at_every_byte(folder: RunFolder) -> None:
    fill(folder, range(3))
    whole = part(folder).read_bytes()
    ends = ends_of_lines(whole)
    for size in range(ends[0], len(whole)):
        put(folder, whole[:size])
        num_good = sum(end <= size for end in ends) - 1
        torn = size - max(end for end in ends if end <= size)
        expected = [f"{part(folder)}: its last {torn} bytes are torn; what was there runs again"]
        assert found_in(folder) == ([str(n) for n in range(num_good)], expected if torn else [])
        assert part(folder).read_bytes() == whole[:size], "looking changes nothing"
        fill(folder, range(num_good, 3))
        assert part(folder).read_bytes() == whole
        assert found_in(folder) == (["0", "1", "2"], [])


def test_zeros_after_the_end_are_cut_off(folder: RunFolder) -> None:
    """A file that grew without its data: power went before the pages were written."""
    fill(folder, range(2))
    whole = part(folder).read_bytes()
    put(folder, whole + bytes(5000))
    assert found_in(folder)[0] == ["0", "1"]
    fill(folder, range(2, 3))
    assert part(folder).read_bytes() == whole + encode(entry(2))


@pytest.mark.slow
def test_every_damaged_byte_costs_no_more_than_the_lines_it_touches(folder: RunFolder) -> None:
    fill(folder, range(4))
    whole = part(folder).read_bytes()
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
    lines = part(folder).read_bytes().splitlines(keepends=True)
    for number in range(1, 8):
        lines[number] = lines[number].replace(b'"key"', b'"kex"')
    put(folder, b"".join(lines))
    keys, notes = found_in(folder)
    assert keys == ["7", "8"]
    assert notes == [f"{part(folder)}: damaged at line 2, 3, 4, 5, 6 and 2 more; what was there runs again"]
    fill(folder, range(7))
    assert sorted(found_in(folder)[0]) == [str(n) for n in range(9)]


def test_a_damaged_first_line_gives_the_part_up(folder: RunFolder) -> None:
    """Without it nobody knows which settings the rows were made with."""
    fill(folder, range(2))
    whole = part(folder).read_bytes()
    for content in (b"", whole[1:], b"\n" + whole, bytes(100), whole.replace(b'"ledger"', b'"ledgex"')):
        put(folder, content)
        expected = [f"{part(folder)}: its first line is damaged; its rows run again"]
        assert found_in(folder) == ([], expected)
    fill(folder, range(2))
    assert sorted(path.name for path in folder.parts.iterdir()) == [NAME, "part-000-00001.jsonl"]
    assert found_in(folder) == (["0", "1"], expected)


def test_a_first_line_that_is_an_entry_is_no_header(folder: RunFolder) -> None:
    put(folder, encode(entry(0)) + encode(entry(1)))
    assert found_in(folder)[0] == []
