"""A power cut at any operation of a run leaves nothing torn, lost or doubled, whatever the disk kept."""

import contextlib
import dataclasses
import random
from pathlib import Path

import pytest

from harness.faulty_storage import CountingStorage
from harness.ledger_session import RECORD, check_finished, check_kept, kept, run_session
from harness.power_cut import PowerCut, PowerCutStorage
from mindbatch.io.storage import write_whole
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord

ROWS, DISKS = 9, 4


def cut_session(root: Path, place: int, group: int) -> tuple[PowerCutStorage, set[str]]:
    """A session that has power for `place` operations; the storage, and the rows that were called safe."""
    storage, safe = PowerCutStorage(root, place), set[str]()
    with contextlib.suppress(PowerCut):
        run_session(root / "run", ROWS, storage, group, safe.add)
    return storage, safe


@pytest.mark.slow
def test_a_run_survives_a_cut_at_every_operation_and_one_in_its_repair(tmp_path: Path) -> None:
    counting = CountingStorage()
    run_session(tmp_path / "unbroken", ROWS, counting, group=2)
    chance = random.Random(0)
    for place in range(len(counting.operations) + 1):
        root = tmp_path / f"root{place}"
        root.mkdir()
        storage, safe = cut_session(root, place, group=2)
        for disk in range(DISKS):
            after = tmp_path / f"disk{place}.{disk}"
            storage.restore(after, chance)
            check_kept(after / "run", safe)
            repairing, safe_too = cut_session(after, chance.randrange(25), group=3)
            again = tmp_path / f"disk{place}.{disk}.again"
            repairing.restore(again, chance)
            check_kept(again / "run", safe | safe_too)
            run_session(again / "run", ROWS, CountingStorage(), group=4)
            check_finished(again / "run", ROWS)


def test_what_a_killed_process_left_to_the_system_is_made_durable_first(tmp_path: Path) -> None:
    """A kill, another session that builds on what it found, and only then a power cut."""
    counting = CountingStorage()
    run_session(tmp_path / "unbroken", ROWS, counting, group=2)
    chance = random.Random(0)
    for place in range(len(counting.operations)):
        root = tmp_path / f"root{place}"
        root.mkdir()
        storage, safe = cut_session(root, place, group=2)
        storage.revive(chance.randrange(10, 40))
        with contextlib.suppress(PowerCut):
            run_session(root / "run", ROWS, storage, 3, safe.add)
        for disk in range(DISKS):
            after = tmp_path / f"disk{place}.{disk}"
            storage.restore(after, chance)
            check_kept(after / "run", safe)


def test_a_cleared_run_does_not_come_back_under_a_new_record(tmp_path: Path) -> None:
    """Overwriting: whatever the disk kept is the old run or the new one, never rows of one in the other."""
    new = dataclasses.replace(RECORD, fields={"decoding.seed": 1})
    chance = random.Random(0)
    place, is_done = 0, False
    while not is_done:
        root = tmp_path / f"root{place}"
        root.mkdir()
        run_session(root / "run", ROWS, CountingStorage(), group=4)
        storage = PowerCutStorage(root, place)
        with contextlib.suppress(PowerCut):
            RunFolder(root / "run").clear(storage)
            new.write(RunFolder(root / "run"), storage)
            is_done = True
        for disk in range(DISKS):
            after = tmp_path / f"disk{place}.{disk}"
            storage.restore(after, chance)
            check_kept(after / "run", set())  # the record fits the parts
            if is_done:
                assert RunRecord.read(RunFolder(after / "run")) == new
                assert kept(after / "run") == []
        place += 1
    assert place > 8


@pytest.mark.parametrize("place", range(8))
def test_a_file_is_the_old_one_or_the_new_one(tmp_path: Path, place: int) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_bytes(b"old")
    storage = PowerCutStorage(root, place)
    finished = True
    try:
        write_whole(root / "file", b"newer", storage)
    except PowerCut:
        finished = False
    found = set()
    for disk in range(30):
        storage.restore(tmp_path / f"disk{disk}", random.Random(disk))
        found.add((tmp_path / f"disk{disk}" / "file").read_bytes())
    assert found <= {b"old", b"newer"}
    if finished:
        assert found == {b"newer"}
