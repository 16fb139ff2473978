"""SIGKILL before, amid and after every operation of a session, and in the session that repairs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize("num_rows", [5, pytest.param(25, marks=pytest.mark.slow)])
def test_nothing_is_lost_doubled_or_torn(tmp_path: Path, num_rows: int) -> None:
    """In a process of its own: one with MindSpore's threads in it is not to be forked."""
    done = subprocess.run(
        [sys.executable, TESTS / "harness/ledger_kills.py", tmp_path, str(num_rows)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout) > 3 * 10 + 6 * num_rows  # it did kill
