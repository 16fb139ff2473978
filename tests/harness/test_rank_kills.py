"""Batch jobs over 2 x 2 ranks whose processes are killed and stopped end as if nobody had touched them."""

import re
from pathlib import Path

import pytest

from harness.networks import NoNetworks, other_host
from harness.scripts import run_script


@pytest.mark.slow
@pytest.mark.processes
def test_sixty_faults(tmp_path: Path) -> None:
    printed = run_script("rank_kills", tmp_path / "runs", "--faults", 60)
    assert printed.endswith("\n60 faults\n")
    restarted = re.search(r"^(\d+) replicas started again", printed, re.MULTILINE)
    assert restarted is not None
    assert int(restarted[1]) >= 10


@pytest.mark.slow
@pytest.mark.processes
def test_a_host_that_is_cut_off(tmp_path: Path) -> None:
    try:
        with other_host():
            pass
    except NoNetworks as error:
        pytest.skip(f"no network namespaces here: {error}")
    printed = run_script("rank_kills", tmp_path / "runs", "--faults", 0, "--cuts", 3)
    assert "3 x host cut off for a while\n" in printed
    assert not printed.endswith("\n0 replicas started again, 0 runs with rows to blame\n3 faults\n")
    assert printed.endswith(" 0 runs with rows to blame\n3 faults\n")


@pytest.mark.slow
@pytest.mark.on_demand
def test_five_hundred_faults(tmp_path: Path) -> None:
    printed = run_script("rank_kills", tmp_path / "runs", "--faults", 500, "--rows", 200, "--seed", 1)
    assert printed.endswith("\n500 faults\n")
