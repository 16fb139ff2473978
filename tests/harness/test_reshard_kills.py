"""Reshards that are killed over and over end as if nobody had touched them; a broken disk gets one line."""

import errno
import os
from pathlib import Path

import pytest

from harness.faulty_storage import CountingStorage, FailingStorage, Places, every_place, telling_places
from harness.reshard_kills import SMALL, WAYS, files_of, plan_of
from harness.scripts import run_script
from mindbatch.checkpoint.reshard.carry_out import carry_out
from mindbatch.io.storage import StorageError
from reshard_models import write_model


@pytest.mark.slow
def test_forty_kills(tmp_path: Path) -> None:
    assert run_script("reshard_kills", tmp_path, "--kills", 40) == "40 kills at random\n"


@pytest.mark.slow
@pytest.mark.on_demand
def test_five_hundred_kills_and_one_at_every_operation(tmp_path: Path) -> None:
    at_random, sweep = run_script("reshard_kills", tmp_path, "--kills", 500, "--sweep").splitlines()
    assert at_random == "500 kills at random"
    assert int(sweep.split()[0]) >= 500


FAULTS = [
    (errno.ENOSPC, True),
    pytest.param(errno.EIO, False, marks=pytest.mark.slow),
    *(
        pytest.param(*each, marks=(pytest.mark.slow, pytest.mark.on_demand))
        for each in ((errno.ENOSPC, False), (errno.EIO, True), (errno.EROFS, True))
    ),
]


@pytest.mark.parametrize(
    "where",
    [telling_places, pytest.param(every_place, marks=(pytest.mark.slow, pytest.mark.on_demand))],
)
@pytest.mark.parametrize(("number", "lasting"), FAULTS)
def test_a_disk_may_fail_at_an_operation(tmp_path: Path, number: int, lasting: bool, where: Places) -> None:
    source = write_model(tmp_path / "source", SMALL, "F16")
    counting = CountingStorage()
    carry_out(plan_of(source, tmp_path / "unbroken", WAYS), counting)
    unbroken = files_of(tmp_path / "unbroken")
    for place in where(counting.operations):
        name = counting.operations[place]
        target = tmp_path / f"target{place}"
        plan = plan_of(source, target, WAYS)
        try:
            carry_out(plan, FailingStorage(place, number, lasting=lasting))
            assert name == "close", f"the failure of {name} at {place} went unnoticed"
        except StorageError as error:
            (line,) = error.faults
            assert line.startswith(f"{target}"), f"{place} ({name}): {line}"
            assert line.endswith(f"cannot be written ({os.strerror(number)})")
        assert files_of(target) in ({}, unbroken)
        carry_out(plan, CountingStorage())
        assert files_of(target) == unbroken, f"{place} ({name})"
        assert not target.with_name(f"{target.name}.part").exists()
