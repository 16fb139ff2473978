"""Killed jobs lose nothing: over a shadow model, wherever they are, and with the real engine.

More of both on demand, with tests and tests/unit/data in PYTHONPATH:
python tests/harness/job_kills.py FOLDER --kills 1000; python tests/harness/engine_kills.py FOLDER --kills 200.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize(("script", "kills"), [("job_kills.py", 200), ("engine_kills.py", 15)])
def test_a_killed_job_ends_like_an_unbroken_one(tmp_path: Path, script: str, kills: int) -> None:
    """In a process of its own: one with MindSpore's threads in it is not to be forked."""
    done = subprocess.run(
        [sys.executable, TESTS / "harness" / script, tmp_path, "--kills", str(kills)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (TESTS, TESTS / "unit/data")))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout.split()[0]) >= kills
