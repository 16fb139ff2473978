"""Batch jobs over 2 x 2 ranks whose processes are killed and stopped end as if nobody had touched them."""

import re
from pathlib import Path

import pytest

from harness.scripts import run_script


@pytest.mark.slow
def test_sixty_faults(tmp_path: Path) -> None:
    printed = run_script("rank_kills", tmp_path / "runs", "--faults", 60)
    assert printed.endswith("\n60 faults\n")
    restarted = re.search(r"^(\d+) replicas started again", printed, re.MULTILINE)
    assert restarted is not None
    assert int(restarted[1]) >= 10


@pytest.mark.slow
@pytest.mark.on_demand
def test_five_hundred_faults(tmp_path: Path) -> None:
    printed = run_script("rank_kills", tmp_path / "runs", "--faults", 500, "--rows", 200, "--seed", 1)
    assert printed.endswith("\n500 faults\n")
