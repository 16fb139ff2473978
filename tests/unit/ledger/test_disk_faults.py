"""A full, broken or read-only disk at any operation: one clear line, and a run that completes later."""

import errno
import os
from pathlib import Path

import pytest

from harness.faulty_storage import MOMENTS, CountingStorage, FailingStorage, InterruptingStorage
from harness.ledger_session import check_finished, check_kept, run_session
from mindbatch.io.storage import StorageError

ROWS, GROUP = 7, 2


def count_operations(folder: Path) -> list[str]:
    storage = CountingStorage()
    run_session(folder, ROWS, storage, GROUP)
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
            run_session(run, ROWS, FailingStorage(place, number, lasting=lasting), GROUP, safe.add)
            assert name == "close", f"the failure of {name} at {place} went unnoticed"  # of a synced part
        except StorageError as error:
            (line,) = error.faults
            assert line.startswith(f"{run}"), f"{place} ({name}): {line}"
            assert f"cannot be written ({os.strerror(number)})" in line
            assert "\n" not in line
        check_kept(run, safe)
        run_session(run, ROWS, CountingStorage(), GROUP + 1)
        check_finished(run, ROWS)


def test_a_failing_ledger_says_what_is_safe(tmp_path: Path) -> None:
    operations = count_operations(tmp_path / "unbroken")
    second_commit = [place for place, name in enumerate(operations) if name == "write"][4]
    storage = FailingStorage(second_commit, errno.ENOSPC)
    with pytest.raises(StorageError) as caught:
        run_session(tmp_path / "run", ROWS, storage, GROUP)
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
            run_session(run, ROWS, InterruptingStorage(place, moment), GROUP, safe.add)
        check_kept(run, safe)
        run_session(run, ROWS, CountingStorage(), GROUP + 1)
        check_finished(run, ROWS)
