"""The job over two devices of scripts/ascend_check.sh, run on a CPU: ranks in MindSpore's collectives."""

from pathlib import Path

import pytest

from mindbatch.ascend_check import two_devices
from mindbatch.ascend_check.page import FAILED, PASSED

pytestmark = [pytest.mark.slow, pytest.mark.processes]


def test_two_ranks_give_the_recorded_tokens(tmp_path: Path) -> None:
    """With the reference kernels they meet as on two hosts or NPUs, and not in memory that they share."""
    found = two_devices.judged(tmp_path, "runtime.kernels=reference")
    assert (found.outcome, found.detail) == (PASSED, "the tokens of one process on a CPU")
    assert len([*(tmp_path / "run/logs").glob("rank_*.log")]) == 2


def test_without_npus_the_job_fails_with_what_its_ranks_say(tmp_path: Path) -> None:
    found = two_devices.judged(tmp_path, "runtime.device_target=Ascend")
    assert found.outcome == FAILED
    assert "runtime.device_target=Ascend: not available here" in found.detail
