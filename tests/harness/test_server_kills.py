"""Servers that are killed over and over give the batches of an unbroken run. server_kills.py kills more."""

from pathlib import Path

import pytest

from harness.scripts import run_script


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("kills", "rows"), [(2, 100), pytest.param(200, 1000, marks=pytest.mark.on_demand)], ids=["few", "many"]
)
def test_batches_of_a_killed_server_end_like_unbroken_runs(tmp_path: Path, kills: int, rows: int) -> None:
    printed = run_script("server_kills", tmp_path, "--kills", kills, "--rows", rows)
    assert printed.startswith(f"{kills} kills, ")
