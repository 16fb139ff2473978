"""The job over two devices of scripts/ascend_check.sh, run on a CPU."""

from pathlib import Path

import pytest

from ascend_check import two_devices
from ascend_check.page import FAILED, PASSED

pytestmark = [pytest.mark.slow, pytest.mark.processes]


def test_two_ranks_give_the_recorded_tokens(tmp_path: Path) -> None:
    found = two_devices.judged(tmp_path)
    assert (found.outcome, found.detail) == (PASSED, "the tokens of one process on a CPU")
    assert len([*(tmp_path / "run/logs").glob("rank_*.log")]) == 2


def test_without_npus_the_job_fails_with_what_its_ranks_say(tmp_path: Path) -> None:
    found = two_devices.judged(tmp_path, "runtime.device_target=Ascend")
    assert found.outcome == FAILED
    assert "runtime.device_target=Ascend: not available here" in found.detail
