"""Jobs killed with the real engine at work lose nothing.

More on demand: python tests/harness/engine_kills.py FOLDER --kills 200.
"""

import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).parents[1] / "harness"


@pytest.mark.slow
@pytest.mark.parametrize("kills", [4, pytest.param(15, marks=pytest.mark.on_demand)])
def test_a_killed_job_ends_like_an_unbroken_one(tmp_path: Path, kills: int) -> None:
    done = subprocess.run(
        [
            sys.executable,
            HARNESS / "engine_kills.py",
            tmp_path,
            "--kills",
            str(kills),
            "--rows",
            "120",
            "--seed",
            "5",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.startswith(f"{kills} kills")
