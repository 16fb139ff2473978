"""Kills a ledger's session before, amid and after each of its operations, and then the repairing session too.

python ledger_kills.py FOLDER ROWS: prints the number of kills; an assertion fails where anything was lost.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from harness.faulty_storage import MOMENTS, CountingStorage, KillingStorage, Moment
from harness.forks import Ending, Send, run_forked
from harness.ledger_session import check_finished, check_kept, run_session

FIRST_GROUP, NEXT_GROUP, LAST_GROUP = 3, 5, 2


def kill_everywhere(folder: Path, num_rows: int) -> int:
    """Sweeps over all places; returns the number of kills."""
    counting = CountingStorage()
    run_session(folder / "unbroken", num_rows, counting, FIRST_GROUP)
    check_finished(folder / "unbroken", num_rows)
    num_places = len(counting.operations)
    return sum(
        _kill_twice(folder / "killed", num_rows, place, moment)
        for place in range(num_places)
        for moment in MOMENTS
    )


def _kill_twice(run: Path, num_rows: int, place: int, moment: Moment) -> int:
    """A kill there, another one a few operations into the repair, and a session that ends the run."""
    shutil.rmtree(run, ignore_errors=True)
    safe: set[str] = set()
    num_kills = 0
    for group, stop in ((FIRST_GROUP, place), (NEXT_GROUP, 3 + place % 17)):
        ending = _session(run, num_rows, KillingStorage(stop, moment), group)
        safe |= set(ending.lines)
        assert ending.was_killed or ending.code == 0, f"place {stop} {moment}: code {ending.code}"
        num_kills += ending.was_killed
        check_kept(run, safe)
    ending = _session(run, num_rows, CountingStorage(), LAST_GROUP)
    assert ending.code == 0, f"the run killed at {place} {moment} does not end: code {ending.code}"
    check_finished(run, num_rows)
    return num_kills


def _session(run: Path, num_rows: int, storage: CountingStorage, group: int) -> Ending:
    def session(send: Send) -> None:
        run_session(run, num_rows, storage, group, send)

    return run_forked(session)


if __name__ == "__main__":
    print(kill_everywhere(Path(sys.argv[1]), int(sys.argv[2])))
