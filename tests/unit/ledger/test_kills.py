"""SIGKILL before, amid and after every operation of a session, and in the session that repairs."""

from pathlib import Path

import pytest

from harness.scripts import run_script


@pytest.mark.parametrize(
    "num_rows", [pytest.param(5, marks=pytest.mark.slow), pytest.param(25, marks=pytest.mark.on_demand)]
)
def test_nothing_is_lost_doubled_or_torn(tmp_path: Path, num_rows: int) -> None:
    num_kills = int(run_script("ledger_kills", tmp_path, num_rows))
    assert num_kills > 3 * 10 + 6 * num_rows  # it did kill
