"""Cuts the power amid reshards, and amid their repairs; whatever the disk kept, each must end well.

python reshard_power_cuts.py FOLDER [--cuts 60] [--disks 2] [--seed 0] [--sweep]: prints how many disks it has
looked at. An assertion fails where a target folder is half there, or the same command does not end as it
would have without a cut.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from harness.faulty_storage import CountingStorage
from harness.power_cut import PowerCut, PowerCutStorage
from harness.reshard_kills import OTHER_WAYS, SMALL, WAYS, files_of, plan_of
from mindbatch.checkpoint.reshard.execution import execute_plan
from mindbatch.checkpoint.reshard.plan import ReshardPlan
from mindbatch.io.storage import Storage
from reshard_models import write_model

TARGET = "target"


@dataclass(frozen=True)
class Kind:
    """replaces: the target is there from another reshard. begun: another one was begun and killed.

    in_background: syncing goes on meanwhile. in_order: see PowerCutStorage. killed: the process dies first,
    and the power goes in the next one.
    """

    replaces: bool = False
    begun: bool = False
    in_background: bool = False
    in_order: bool = True
    killed: bool = False


class Campaign:
    """Reshards of one source; `num_disks` were looked at."""

    def __init__(self, folder: Path, seed: int, num_disks: int) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._disks_each = num_disks
        self._chance = random.Random(seed)
        self._num_folders = 0
        self.num_disks = 0
        source = write_model(folder / "source", SMALL, "BF16")
        self._plans = {ways: plan_of(source, folder / TARGET, ways) for ways in (WAYS, OTHER_WAYS)}
        self._unbroken = {ways: self._made(ways) for ways in (OTHER_WAYS, WAYS)}
        self.num_operations = {replaces: self._counted(Kind(replaces)) for replaces in (False, True)}

    def _made(self, ways: int) -> dict[str, bytes]:
        home = self._new_home()
        self._session(home, CountingStorage(), ways=ways)
        return files_of(home / TARGET)

    def _counted(self, kind: Kind) -> int:
        home, counting = self._prepared(kind), CountingStorage()
        self._session(home, counting)
        return len(counting.operations)

    def _new_home(self) -> Path:
        self._num_folders += 1
        home = self._folder / f"disk{self._num_folders}"
        home.mkdir()
        return home

    def _prepared(self, kind: Kind) -> Path:
        """What is on the disk before: synced, all of it."""
        home = self._new_home()
        if kind.replaces:
            self._session(home, CountingStorage(), ways=OTHER_WAYS)
        if kind.begun:
            storage = PowerCutStorage(home, self._chance.randrange(20, 80))
            self._session(home, storage, ways=OTHER_WAYS, gives_way=False)
        return home

    def _session(
        self,
        home: Path,
        storage: Storage,
        *,
        ways: int = WAYS,
        in_background: bool = False,
        gives_way: bool = True,
    ) -> None:
        """One process; it may have power to the end."""
        plan: ReshardPlan = replace(self._plans[ways], target=home / TARGET, replace=gives_way)
        with contextlib.suppress(PowerCut):
            execute_plan(plan, storage, in_background=in_background)

    def cut_at(self, place: int, kind: Kind) -> None:
        """A session that has power for `place` operations, then the disks that this may leave."""
        home = self._prepared(kind)
        storage = PowerCutStorage(home, place, in_order=kind.in_order)
        self._session(home, storage, in_background=kind.in_background)
        if kind.killed:
            storage.revive(self._chance.randrange(60))
            self._session(home, storage, in_background=kind.in_background)
        for _ in range(self._disks_each):
            where = f"{kind}, cut at {place}"
            first = self._restored(storage, kind, where)
            repairing = PowerCutStorage(first, self._chance.randrange(60), in_order=kind.in_order)
            self._session(first, repairing, in_background=kind.in_background)
            self._end(self._restored(repairing, kind, f"{where}, and in the repair"), where)
            shutil.rmtree(first)
        shutil.rmtree(home)

    def _restored(self, storage: PowerCutStorage, kind: Kind, where: str) -> Path:
        """A disk after the cut: the target is the old one or the new one."""
        home = self._new_home()
        home.rmdir()
        storage.restore(home, self._chance)
        self.num_disks += 1
        found = files_of(home / TARGET) if (home / TARGET).exists() else None
        old = self._unbroken[OTHER_WAYS] if kind.replaces else None
        assert found in (old, self._unbroken[WAYS]), f"{home}: {where}: {sorted(found or ())}"
        return home

    def _end(self, home: Path, where: str) -> None:
        """The same command, with power to the end: as if there had been no cut."""
        self._session(home, CountingStorage())
        assert files_of(home / TARGET) == self._unbroken[WAYS], f"{home}: {where}"
        left = [path.name for path in home.iterdir() if path.name != TARGET]
        assert not left, f"{home}: {where}: left behind: {left}"
        shutil.rmtree(home)


def some_kind(chance: random.Random) -> Kind:
    """Any kind but a replacement of what was only begun."""
    replaces, begun, *others = (chance.random() < 0.4 for _ in range(5))
    return Kind(replaces, begun and not replaces, *others)


def some_place(num_operations: int, chance: random.Random) -> int:
    """Anywhere, more often near the ends, where names change."""
    return chance.choice(
        [
            chance.randrange(num_operations + 1),
            chance.randrange(20),
            num_operations - chance.randrange(35),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cuts", type=int, default=60, help="at random")
    parser.add_argument("--disks", type=int, default=2, help="for each cut")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sweep", action="store_true", help="also at every operation")
    arguments = parser.parse_args()
    campaign = Campaign(arguments.folder / "reshards", arguments.seed, arguments.disks)
    chance = random.Random(arguments.seed)
    for _ in range(arguments.cuts):
        kind = some_kind(chance)
        campaign.cut_at(some_place(campaign.num_operations[kind.replaces], chance), kind)
    if arguments.sweep:
        for replaces in (False, True):
            for place in range(campaign.num_operations[replaces] + 1):
                campaign.cut_at(place, replace(some_kind(chance), replaces=replaces, begun=False))
    print(f"{campaign.num_disks} disks after power cuts")


if __name__ == "__main__":
    main()
