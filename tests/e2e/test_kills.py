"""Jobs killed with the real engine at work lose nothing.

More on demand: python tests/harness/engine_kills.py FOLDER --kills 200.
"""

import subprocess
import sys
from pathlib import Path

import pytest

KINDS = ("float32", "bfloat16", "int8")
HARNESS = Path(__file__).parents[1] / "harness"


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("kills", "rows", "seed", "settings"),
    [
        (1, 40, 133, ()),
        (1, 40, 133, ("model.dtype=bfloat16",)),
        (1, 40, 133, ("model.quantization=int8",)),
        (1, 40, 133, ("model.quantization=int8", "runtime.instruction_set=portable")),
        pytest.param(15, 120, 5, (), marks=pytest.mark.on_demand),
        pytest.param(9, 120, 5, ("model.dtype=bfloat16",), marks=pytest.mark.on_demand),
        pytest.param(9, 120, 5, ("model.quantization=int8",), marks=pytest.mark.on_demand),
    ],
    ids=["float32", "bfloat16", "int8", "portable int8", *(f"several {kind}" for kind in KINDS)],
)
def test_a_killed_job_ends_like_an_unbroken_one(
    tmp_path: Path, kills: int, rows: int, seed: int, settings: tuple[str, ...]
) -> None:
    options = {"--kills": kills, "--rows": rows, "--seed": seed}
    words = [word for pair in options.items() for word in map(str, pair)]
    words += ["--settings", *settings] if settings else []
    done = subprocess.run(
        [sys.executable, HARNESS / "engine_kills.py", tmp_path, *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.startswith(f"{kills} kills")
