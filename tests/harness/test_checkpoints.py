"""Reshards that are killed, or lose power or a disk, end as if untouched."""

import contextlib
import errno
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.faulty_storage import CountingStorage, FailingStorage, Places, every_place, telling_places
from harness.power_cut import PowerCut, PowerCutStorage
from harness.reshard_kills import OTHER_WAYS, SMALL, WAYS, files_of, plan_of
from harness.scripts import run_script
from mindbatch.checkpoint.reshard.execution import execute_plan
from mindbatch.checkpoint.reshard.plan import ReshardPlan
from mindbatch.io.storage import StorageError
from reshard_models import write_model

DISKS = 25
Orders = Callable[[Path, int], ReshardPlan]


@pytest.mark.slow
def test_25_power_cuts(tmp_path: Path) -> None:
    assert run_script("reshard_power_cuts", tmp_path, "--cuts", 25) == "100 disks after power cuts\n"


@pytest.mark.slow
@pytest.mark.on_demand
def test_a_power_cut_at_every_operation_and_two_thousand_at_random(tmp_path: Path) -> None:
    found = run_script("reshard_power_cuts", tmp_path, "--cuts", 2000, "--disks", 3, "--seed", 1, "--sweep")
    assert int(found.split()[0]) > 13_000


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    source = write_model(tmp_path / "source", SMALL, "BF16")
    planned = {ways: plan_of(source, tmp_path / "none", ways, gives_way=True) for ways in (WAYS, OTHER_WAYS)}
    return lambda home, ways: replace(planned[ways], target=home / "target")


class Stop(PowerCutStorage):
    """Power until an operation of this name is done, the one with this number among them."""

    def __init__(self, root: Path, name: str, number: int) -> None:
        super().__init__(root, 10**9, in_order=False)
        self._name, self._number = name, number

    def perform(self, name: str, operation: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        result = super().perform(name, operation, arguments)
        if name == self._name and self.operations.count(name) == self._number:
            self._place = len(self.operations)
        return result


def disks(storage: PowerCutStorage, tmp_path: Path) -> Iterator[Path]:
    for number in range(DISKS):
        storage.restore(tmp_path / f"disk{number}", random.Random(number))
        yield tmp_path / f"disk{number}"


def count_of(name: str, orders: Orders, home: Path) -> int:
    """How many operations of this name an unbroken session has."""
    home.mkdir()
    counting = CountingStorage()
    execute_plan(orders(home, WAYS), counting)
    return counting.operations.count(name)


def test_the_journal_of_a_killed_process_does_not_come_back(orders: Orders, tmp_path: Path) -> None:
    """Killed when it had removed the journal; the next one gives the folder its name; then the power goes."""
    last = count_of("remove", orders, tmp_path / "whole")
    home = tmp_path / "home"
    home.mkdir()
    storage = Stop(home, "remove", last)
    with contextlib.suppress(PowerCut):
        execute_plan(orders(home, WAYS), storage)
    assert not (home / "target").exists()
    storage.revive(10**9)
    assert execute_plan(orders(home, WAYS), storage).notes
    for disk in disks(storage, tmp_path):
        assert files_of(disk / "target") == files_of(tmp_path / "whole/target")


def test_what_was_begun_as_another_reshard_does_not_come_back(orders: Orders, tmp_path: Path) -> None:
    """Four ranks were begun, two are wanted; the power goes when the new journal has just got its name."""
    count_of("remove", orders, tmp_path / "whole")
    home = tmp_path / "home"
    home.mkdir()
    with contextlib.suppress(PowerCut):
        execute_plan(orders(home, OTHER_WAYS), PowerCutStorage(home, 60))
    assert (home / "target.part/rank_3").exists()
    storage = Stop(home, "replace", 1)
    with contextlib.suppress(PowerCut):
        execute_plan(orders(home, WAYS), storage)
    for disk in disks(storage, tmp_path):
        execute_plan(orders(disk, WAYS), CountingStorage())
        assert files_of(disk / "target") == files_of(tmp_path / "whole/target")


def test_the_old_folder_stays_whole_until_the_new_name_is_on_the_disk(orders: Orders, tmp_path: Path) -> None:
    """Killed between the exchange and its sync; the next process removes what was displaced."""
    home = tmp_path / "home"
    home.mkdir()
    execute_plan(orders(home, OTHER_WAYS), CountingStorage())
    old = files_of(home / "target")
    storage = Stop(home, "exchange", 1)
    with contextlib.suppress(PowerCut):
        execute_plan(orders(home, WAYS), storage)
    new = files_of(home / "target")
    assert new != old
    storage.revive(9)
    with contextlib.suppress(PowerCut):
        execute_plan(orders(home, WAYS), storage)
    assert 0 < len(files_of(home / "target.part")) < len(old)
    for disk in disks(storage, tmp_path):
        assert files_of(disk / "target") in (old, new)


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
    execute_plan(plan_of(source, tmp_path / "unbroken", WAYS), counting)
    unbroken = files_of(tmp_path / "unbroken")
    for place in where(counting.operations):
        name = counting.operations[place]
        target = tmp_path / f"target{place}"
        plan = plan_of(source, target, WAYS)
        try:
            execute_plan(plan, FailingStorage(place, number, lasting=lasting))
            assert name == "close", f"the failure of {name} at {place} went unnoticed"
        except StorageError as error:
            (line,) = error.lines
            assert line.startswith(f"{target}"), f"{place} ({name}): {line}"
            assert line.endswith(f"cannot be written ({os.strerror(number)})")
        assert files_of(target) in ({}, unbroken)
        execute_plan(plan, CountingStorage())
        assert files_of(target) == unbroken, f"{place} ({name})"
        assert not target.with_name(f"{target.name}.part").exists()
