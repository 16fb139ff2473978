"""Running the harness's scripts in processes of their own: one that has MindSpore in it cannot be forked."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
FOLDERS = ("", "stand_ins", "samples", "processes", "unit/prompts", "unit/checkpoint", "numerics")
PLACES = [*(TESTS / folder for folder in FOLDERS), TESTS.parent / "tools"]
_PLACES_BEFORE = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []


def run_script(name: str, *arguments: object) -> str:
    """Runs `harness/NAME.py`; returns what it prints. Its assertions are the caller's."""
    done = subprocess.run(
        [sys.executable, TESTS / f"harness/{name}.py", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, PLACES), *_PLACES_BEFORE])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    return done.stdout
