"""Damaged checkpoints of every format are refused by name. checkpoint_damage.py damages more."""

from pathlib import Path

import pytest

from harness.scripts import run_script


@pytest.mark.slow
def test_some_flips_and_cuts(tmp_path: Path) -> None:
    printed = run_script("checkpoint_damage", tmp_path / "files", "--flips", 150, "--cuts", 150)
    assert printed == "150 flips and 150 cuts in 20 checkpoints\n"


@pytest.mark.slow
@pytest.mark.on_demand
def test_ten_thousand_flips_and_cuts(tmp_path: Path) -> None:
    printed = run_script("checkpoint_damage", tmp_path / "files", "--flips", 10_000, "--cuts", 10_000)
    assert printed == "10000 flips and 10000 cuts in 20 checkpoints\n"
