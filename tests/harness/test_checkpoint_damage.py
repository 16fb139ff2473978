"""Damaged checkpoints of every format are refused by name. checkpoint_damage.py damages more."""

from pathlib import Path

import pytest

from harness.scripts import run_script


@pytest.mark.slow
@pytest.mark.parametrize("number", [150, pytest.param(10_000, marks=pytest.mark.on_demand)])
def test_some_flips_and_cuts(tmp_path: Path, number: int) -> None:
    printed = run_script("checkpoint_damage", tmp_path / "files", "--flips", number, "--cuts", number)
    assert printed == f"{number} flips and {number} cuts in 20 checkpoints\n"
