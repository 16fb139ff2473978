"""A small run, whole: folder, lock, record, ledger and results, as a job uses them, without a model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import orjson

from mindbatch.io.storage import Storage, WholeFile
from mindbatch.ledger.entries import Entry
from mindbatch.ledger.ledger import Ledger
from mindbatch.ledger.run_folder import RunFolder, RunLock
from mindbatch.ledger.run_record import RunRecord

RECORD = RunRecord(
    created="2026-01-01", command=["batch"], fields={"decoding.seed": 0}, dataset={}, date="2026-01-01"
)

Acknowledge = Callable[[str], None]


def entry(number: int) -> Entry:
    """What a model would give for a row: always the same."""
    text = hashlib.sha256(str(number).encode()).hexdigest() * (1 + number % 3)
    body = {"text": text, "number": number, "generations": [], "prompt_tokens": 0}
    return Entry(str(number), f"row{number}", "result", body)


def run_session(
    path: Path, num_rows: int, storage: Storage, group: int, acknowledge: Acknowledge = lambda key: None
) -> None:
    """Does what is missing of `num_rows` rows, `group` to a commit, and writes the results.

    acknowledge: told the key of each row that is safe from then on; what an earlier session left is so, too,
        once this one has committed something.
    """
    folder = RunFolder(path)
    folder.make(storage)
    with RunLock(folder, storage):
        folder.remove_leftovers(storage)
        if not folder.holds_a_run:
            RECORD.write(folder, storage)
        record = RunRecord.read(folder)
        with Ledger(folder, record.fingerprint, storage) as ledger:
            places = {entry.key: place for entry, place in ledger.recover()}
            recovered = list(places)
            missing = [number for number in range(num_rows) if str(number) not in places]
            for start in range(0, len(missing), group):
                numbers = missing[start : start + group]
                places |= {str(number): ledger.append(entry(number)) for number in numbers}
                ledger.commit()
                for key in [*recovered, *map(str, numbers)]:
                    acknowledge(key)
            with WholeFile(folder.results("jsonl"), storage) as file:
                for number in range(num_rows):
                    file.write(orjson.dumps(ledger.read(places[str(number)]).body) + b"\n")


def kept(path: Path) -> list[Entry]:
    """All entries that the ledger holds, in order; none when there is no run yet."""
    folder = RunFolder(path)
    if not folder.holds_a_run:
        return []
    with Ledger(folder, RunRecord.read(folder).fingerprint) as ledger:
        return [ledger.read(place) for _, place in ledger.recover()]


def check_kept(path: Path, acknowledged: set[str]) -> None:
    """None lost that was said to be safe, none twice, each as it was written."""
    found = kept(path)
    keys = [each.key for each in found]
    assert acknowledged <= set(keys), f"lost: {sorted(acknowledged - set(keys))}"
    assert len(keys) == len(set(keys)), f"doubled: {sorted(keys)}"
    for each in found:
        assert each == entry(int(each.key)), f"changed: {each}"


def check_finished(path: Path, num_rows: int) -> None:
    """Everything is there, once, in order, and nothing of a killed session is left."""
    check_kept(path, {str(number) for number in range(num_rows)})
    expected = b"".join(orjson.dumps(entry(number).body) + b"\n" for number in range(num_rows))
    assert (path / "results.jsonl").read_bytes() == expected
    hidden = [found.name for found in path.rglob(".*")]
    assert not hidden, f"left behind: {hidden}"
