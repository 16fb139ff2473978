"""The journal of a reshard: what a crash has torn is not believed, and goes before more is written."""

from pathlib import Path

from mindbatch.checkpoint.reshard.journal import Journal, read_journal
from mindbatch.checkpoint.reshard.write import Written
from mindbatch.io.storage import Storage

HEAD = {"plan": "digest"}
NOTES = [
    Written(f"rank_{rank}/a.safetensors", f"layer.{rank}", f"{rank:032x}", 10 * rank) for rank in range(3)
]


def write_journal(path: Path) -> bytes:
    journal = Journal(path, Storage(), None, HEAD)
    for note in NOTES:
        journal.append([note])
    journal.close()
    return path.read_bytes()


def test_a_journal_cut_anywhere_has_the_lines_that_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "reshard.journal"
    whole = write_journal(path)
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        found = read_journal(path)
        lines = sum(end <= cut for end in ends)
        if found is None:
            assert lines == 0
        else:
            assert (found.head, found.size) == (HEAD, ends[lines - 1])
            assert list(found.written) == NOTES[: lines - 1]


def test_what_is_torn_goes_before_more_is_written(tmp_path: Path) -> None:
    path = tmp_path / "reshard.journal"
    whole = write_journal(path)
    path.write_bytes(whole[:-1])  # all but the last newline
    found = read_journal(path)
    assert found is not None
    journal = Journal(path, Storage(), found)
    journal.append(NOTES[-1:])
    journal.close()
    assert path.read_bytes() == whole
