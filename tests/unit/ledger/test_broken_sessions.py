"""A run broken at any operation, by a kill, a bad disk or a power cut: nothing is lost, doubled or torn."""

import contextlib
import dataclasses
import errno
import os
import random
from pathlib import Path

import pytest

from harness.faulty_storage import MOMENTS, CountingStorage, FailingStorage, InterruptingStorage
from harness.ledger_session import RECORD, check_finished, check_kept, kept, run_session
from harness.power_cut import PowerCut, PowerCutStorage
from harness.scripts import run_script
from mindbatch.io.storage import StorageError, write_whole
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


@pytest.mark.parametrize(
    "num_rows", [pytest.param(5, marks=pytest.mark.slow), pytest.param(25, marks=pytest.mark.on_demand)]
)
def test_nothing_is_lost_doubled_or_torn(tmp_path: Path, num_rows: int) -> None:
    num_kills = int(run_script("ledger_kills", tmp_path, num_rows))
    assert num_kills > 3 * 10 + 6 * num_rows  # it did kill


FEW_ROWS, GROUP = 7, 2


def count_operations(folder: Path) -> list[str]:
    storage = CountingStorage()
    run_session(folder, FEW_ROWS, storage, GROUP)
    return storage.operations


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EIO, pytest.param(errno.EACCES, marks=pytest.mark.slow)]
)
def test_every_operation_may_fail(tmp_path: Path, number: int, lasting: bool) -> None:
    operations = count_operations(tmp_path / "unbroken")
    for place, name in enumerate(operations):
        run, safe = tmp_path / f"run{place}", set[str]()
        try:
            run_session(run, FEW_ROWS, FailingStorage(place, number, lasting=lasting), GROUP, safe.add)
            assert name == "close", f"the failure of {name} at {place} went unnoticed"  # of a synced part
        except StorageError as error:
            (line,) = error.lines
            assert line.startswith(f"{run}"), f"{place} ({name}): {line}"
            assert f"cannot be written ({os.strerror(number)})" in line
            assert "\n" not in line
        check_kept(run, safe)
        run_session(run, FEW_ROWS, CountingStorage(), GROUP + 1)
        check_finished(run, FEW_ROWS)


def test_a_failing_ledger_says_what_is_safe(tmp_path: Path) -> None:
    operations = count_operations(tmp_path / "unbroken")
    second_commit = [place for place, name in enumerate(operations) if name == "write"][4]
    storage = FailingStorage(second_commit, errno.ENOSPC)
    with pytest.raises(StorageError) as caught:
        run_session(tmp_path / "run", FEW_ROWS, storage, GROUP)
    assert str(caught.value) == (
        f"{tmp_path / 'run'}: cannot be written (No space left on device); 2 finished rows are safe, "
        "and the same command resumes when that is mended"
    )


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupt_may_come_anywhere(tmp_path: Path, moment: str) -> None:
    operations = count_operations(tmp_path / "unbroken")
    for place in range(len(operations)):
        run, safe = tmp_path / f"run{place}", set[str]()
        with pytest.raises(KeyboardInterrupt):
            run_session(run, FEW_ROWS, InterruptingStorage(place, moment), GROUP, safe.add)
        check_kept(run, safe)
        run_session(run, FEW_ROWS, CountingStorage(), GROUP + 1)
        check_finished(run, FEW_ROWS)
