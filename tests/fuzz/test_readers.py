"""What stands in a file from outside is read, or refused in the project's words; see every_reader.py.

A failure names the reader, the number of the case and a file that makes it happen again.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fuzz.planted_readers import FAULTS, READERS
from harness.scripts import run_script

SCRIPT = "../fuzz/every_reader"

pytestmark = pytest.mark.slow


def _must_find_nothing(printed: str) -> None:
    """Nor may a reader, or a library, print anything."""
    assert re.fullmatch(r"\d+ cases of \d+ readers\n", printed), printed


def test_ten_cases_of_each_reader(tmp_path: Path) -> None:
    _must_find_nothing(run_script(SCRIPT, "--cases", 10, "--kept", tmp_path))


@pytest.mark.on_demand
def test_thousands_of_cases_of_each_reader(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    cases = request.config.getoption("fuzz_cases", 5000)
    seed = request.config.getoption("fuzz_seed", 0)
    _must_find_nothing(run_script(SCRIPT, "--cases", cases, "--seed", seed, "--kept", tmp_path))


def test_planted_faults_are_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as failure:
        run_script(
            SCRIPT, *(reader.name for reader in READERS), "--cases", 1, "--seed", 3, "--kept", tmp_path
        )
    for reader, fault in zip(READERS, FAULTS.values(), strict=True):
        line = rf"{reader.name}: case (\d+) \({tmp_path}/{reader.name}-\1-file\): {fault}"
        assert re.search(line, str(failure.value))
