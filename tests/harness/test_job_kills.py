"""Batch jobs that are killed over and over end as if nobody had touched them. job_kills.py kills more."""

from pathlib import Path

import pytest

from harness.scripts import run_script


@pytest.mark.slow
def test_a_kill_at_each_kind_of_operation_and_a_few_at_random(tmp_path: Path) -> None:
    arguments = ("--rows", 60, "--kills", 12, "--sweep-rows", 40, "--sweep", "telling")
    sweep, at_random = run_script("job_kills", tmp_path / "runs", *arguments).splitlines()
    assert int(sweep.split()[0]) >= 60
    assert at_random == "12 kills at random in runs of 60 rows"


@pytest.mark.slow
@pytest.mark.on_demand
def test_a_kill_at_every_moment_and_hundreds_at_random(tmp_path: Path) -> None:
    arguments = ("--rows", 2000, "--kills", 200, "--sweep-rows", 40, "--sweep", "every")
    printed = run_script("job_kills", tmp_path / "runs", *arguments)
    sweep, at_random = printed.splitlines()
    assert int(sweep.split()[0]) >= 200
    assert at_random == "200 kills at random in runs of 2000 rows"
