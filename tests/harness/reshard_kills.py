"""Kills reshards at exact operations, at random and while they replace another; each must end well.

python reshard_kills.py FOLDER [--kills 100] [--sweep] [--seed 0]: prints what it has done. An assertion fails
where a target folder is half there, or not what an unbroken reshard makes.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.faulty_storage import MOMENTS, CountingStorage, KillingStorage
from harness.forks import FAILED, Send, run_forked
from mindbatch.checkpoint.folders.resharded import MARKER_NAME
from mindbatch.checkpoint.reshard.execution import execute_plan
from mindbatch.checkpoint.reshard.folder import PART_SUFFIX
from mindbatch.checkpoint.reshard.plan import ReshardPlan
from mindbatch.tasks.reshard.plan import plan_reshard
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.source import open_reshard_source
from reshard_models import LLAMA, write_model

SMALL = {**LLAMA, "num_hidden_layers": 1, "vocab_size": 33}
SYNC_BYTES = 12_000
WAYS, OTHER_WAYS = 2, 4


def plan_of(
    source: Path,
    target: Path,
    ways: int,
    *,
    gives_way: bool = False,
    adapter: Path | None = None,
    **more: Any,
) -> ReshardPlan:
    """A reshard that syncs often, is read back, and replaces what was there if `gives_way`.

    adapter: what it merges. more: of the target's options.
    """
    config = ReshardConfig(source=str(source), verify=True)
    config.target.dir, config.target.model_parallel, config.target.replace = str(target), ways, gives_way
    config.lora.merge = adapter and str(adapter)
    for name, value in more.items():
        setattr(config.target, name, value)
    opened = open_reshard_source(config)
    with opened.source:
        return replace(plan_reshard(config, opened), sync_bytes=SYNC_BYTES)


def files_of(folder: Path) -> dict[str, bytes]:
    """All files below a folder; nothing when it is not there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Campaign:
    """Reshards of one source into one folder after another, each killed as often as one likes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._source = write_model(folder / "source", SMALL, "BF16")
        self._num_runs = 0
        self.num_kills = 0
        self.unbroken: dict[int, dict[str, bytes]] = {}
        self.num_operations: dict[bool, int] = {}
        for ways in (OTHER_WAYS, WAYS):
            storage = CountingStorage()
            target = folder / f"unbroken{ways}"
            execute_plan(plan_of(self._source, target, ways), storage)
            self.unbroken[ways] = files_of(target)
            self.num_operations[False] = len(storage.operations)
        self.num_operations[True] = self._count_replacement()

    def _count_replacement(self) -> int:
        storage = CountingStorage()
        target = self._folder / f"unbroken{OTHER_WAYS}"
        execute_plan(plan_of(self._source, target, WAYS, gives_way=True), storage)
        assert files_of(target) == self.unbroken[WAYS]
        assert not target.with_name(target.name + PART_SUFFIX).exists()
        return len(storage.operations)

    def new_run(self, *, replaces: bool) -> Run:
        """A run in a folder of its own, in which another reshard is if it `replaces` that."""
        self._num_runs += 1
        home = self._folder / f"run{self._num_runs}"
        home.mkdir()
        if replaces:
            execute_plan(plan_of(self._source, home / "target", OTHER_WAYS), CountingStorage())
        return Run(self, home / "target", replaces)

    def session(self, target: Path, ways: int, storage: CountingStorage, *, gives_way: bool) -> bool:
        """One session in a child; whether it was killed."""

        def session(send: Send) -> None:
            execute_plan(plan_of(self._source, target, ways, gives_way=gives_way), storage)

        ending = run_forked(session)
        assert ending.code != FAILED, f"{target}: the session failed; see above"
        self.num_kills += ending.was_killed
        return ending.was_killed


class Run:
    """One target folder."""

    def __init__(self, campaign: Campaign, target: Path, replaces: bool) -> None:
        self._campaign = campaign
        self._target = target
        self._replaces = replaces
        self._may_be = [{}, campaign.unbroken[WAYS]]
        if replaces:
            self._may_be[0] = campaign.unbroken[OTHER_WAYS]

    @property
    def is_open(self) -> bool:
        """Whether there is nothing yet, so that another reshard may be begun here."""
        return not self._target.exists()

    def killed_at(self, place: int, moment: str, ways: int = WAYS) -> bool:
        """A session that is killed at its operation number `place`; whether it had so many."""
        storage = KillingStorage(place, moment)  # type: ignore[arg-type]
        was_killed = self._campaign.session(self._target, ways, storage, gives_way=self._replaces)
        where = f"{self._target}: killed at operation {place} {moment}"
        found = files_of(self._target)
        assert found in self._may_be, f"{where}: half: {sorted(found)}"
        assert not found or MARKER_NAME in found
        return was_killed

    def end(self) -> None:
        """A session that comes to its end; then all is as if nothing had ever been killed."""
        storage = CountingStorage()
        assert not self._campaign.session(self._target, WAYS, storage, gives_way=self._replaces)
        assert files_of(self._target) == self._campaign.unbroken[WAYS]
        assert os.listdir(self._target.parent) == [self._target.name], "something is left behind"
        shutil.rmtree(self._target.parent)


def sweep(campaign: Campaign, *, replaces: bool) -> None:
    """A run for each operation and moment of a session: killed there, and again early in the next one."""
    for place in range(campaign.num_operations[replaces]):
        for moment in MOMENTS:
            run = campaign.new_run(replaces=replaces)
            assert run.killed_at(place, moment)
            run.killed_at(2 + place % 13, moment)
            run.end()


def kill_at_random(campaign: Campaign, num_kills: int, chance: random.Random) -> None:
    """Runs that are killed over and over; now and then another reshard is tried in the same folder."""
    last = campaign.num_kills + num_kills
    while campaign.num_kills < last:
        replaces = chance.random() < 0.3
        run, is_hit = campaign.new_run(replaces=replaces), True
        while is_hit and campaign.num_kills < last:
            place = chance.randrange(campaign.num_operations[replaces])
            ways = OTHER_WAYS if run.is_open and chance.random() < 0.1 else WAYS
            is_hit = run.killed_at(min(place, 40) if ways != WAYS else place, chance.choice(MOMENTS), ways)
        run.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=100, help="at random")
    parser.add_argument("--sweep", action="store_true", help="also at every operation")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    campaign = Campaign(arguments.folder / "reshards")
    kill_at_random(campaign, arguments.kills, random.Random(arguments.seed))
    print(f"{campaign.num_kills} kills at random")
    if arguments.sweep:
        before = campaign.num_kills
        for replaces in (False, True):
            sweep(campaign, replaces=replaces)
        print(f"{campaign.num_kills - before} kills at every operation, new and in place of another")


if __name__ == "__main__":
    main()
