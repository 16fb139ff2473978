"""Ranks of one host that meet in shared memory: what each gets is exact and the same."""

import subprocess
import sys
from pathlib import Path

import pytest

from mindbatch.kernels.native_library import find_library

PROGRAM = Path(__file__).parents[2] / "processes/meeting_ranks.py"


@pytest.mark.fast_cases(1)
@pytest.mark.skipif(find_library() is None, reason="the C++ kernels were not built")
@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_sums_and_gathers_of_several_processes(size: int) -> None:
    done = subprocess.run([sys.executable, PROGRAM, str(size)], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
