"""Kills batch jobs over a stub model, at random moments and at exact operations; each run must end well.

python job_kills.py FOLDER [--rows 2000] [--kills 200] [--sweep-rows 40] [--sweep every] [--seed 0]
Prints what it has done.
An assertion fails where a row was lost, doubled or torn, or where the results differ from an unbroken run's.
"""

from __future__ import annotations

import argparse
import random
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from harness.faulty_storage import (
    MOMENTS,
    CountingStorage,
    KillingStorage,
    Moment,
    different_kills,
    telling_places,
)
from harness.forks import FAILED, Ending, Send, run_forked
from mindbatch.ledger.entries import Entry
from mindbatch.ledger.ledger import Ledger
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord
from mindbatch.run.batch_config import BatchConfig
from stub_job import job_config, make_job, shared_tokenizer

SWEEPS = ("telling", "different", "every")
BATCH_SIZES = (2, 5, 16, 48)
COMPARED = ("results.jsonl", "errors.jsonl")
POISON = (b"not json", b'{"id": "N"}', b'{"id": "N", "prompt": ""}', b'{"id": "N", "prompt": "\xff"}')


def write_data(path: Path, num_rows: int) -> Path:
    """Rows with keys, prompts that share beginnings, lengths that vary; 2% cannot be read or run."""
    lines = []
    for number in range(num_rows):
        too_long = "x" * (300 * (number % 100 == 33))
        prompt = f"Question {number % 7}: " + "why " * (number % 5) + too_long
        lines.append(orjson.dumps({"id": f"row-{number}", "prompt": prompt}))
        if number % 100 == 20:
            lines[-1] = POISON[number // 100 % len(POISON)].replace(b"N", b"bad-%d" % number)
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


@dataclass(frozen=True)
class Unbroken:
    """A run that nobody disturbed: its files, entries and operations, and how long it takes."""

    files: dict[str, bytes]
    entries: dict[str, Entry]
    operations: tuple[str, ...]
    seconds: float


class Campaign:
    """Runs over one dataset in one folder, each with the same settings."""

    def __init__(self, folder: Path, num_rows: int) -> None:
        folder.mkdir(parents=True)
        self._data = write_data(folder / "rows.jsonl", num_rows)
        self._folder = folder
        self._num_runs = 0
        self.num_kills = 0
        self.unbroken = self._run_unbroken()

    def new_run(self) -> Run:
        """A run in a folder of its own."""
        self._num_runs += 1
        return Run(self, self._folder / f"run{self._num_runs}")

    def config(self, folder: Path) -> BatchConfig:
        """The settings, which sample, so that the results depend on more than the prompts."""
        decoding = {"do_sample": True, "temperature": 0.9, "seed": 5, "max_new_tokens": 2}
        return job_config(self._data, folder, key_column="id", decoding=decoding)

    def session(
        self, folder: Path, storage: CountingStorage, batch_size: int, kill_after: float | None = None
    ) -> Ending:
        """One session in a child, which sends the names of its operations if it comes to its end."""

        def session(send: Send) -> None:
            make_job(self.config(folder), storage=storage, batch_size=batch_size).run()
            for name in storage.operations:
                send(name)

        ending = run_forked(session, kill_after)
        assert ending.code != FAILED, f"{folder}: the session failed; see above"
        assert ending.was_killed or ending.code == 0, f"{folder}: code {ending.code}"
        self.num_kills += ending.was_killed
        return ending

    def _run_unbroken(self) -> Unbroken:
        folder, start = self._folder / "unbroken", time.monotonic()
        ending = self.session(folder, CountingStorage(), batch_size=16)
        seconds = time.monotonic() - start
        files = {name: (folder / name).read_bytes() for name in COMPARED}
        assert all(files.values()), "there are results and errors to compare"
        entries = {entry.key: entry for entry in entries_in(folder)}
        return Unbroken(files, entries, ending.lines, seconds)


class Run:
    """One run, killed as often as one likes."""

    def __init__(self, campaign: Campaign, folder: Path) -> None:
        self._campaign = campaign
        self._folder = folder
        self._keys: set[str] = set()

    def killed_at(self, place: int, moment: str, batch_size: int) -> bool:
        """A session that is killed at its operation number `place`; whether it had so many."""
        return self._session(KillingStorage(place, moment), batch_size, None, f"operation {place} {moment}")

    def killed_after(self, seconds: float, batch_size: int) -> bool:
        """A session that is killed after a time; whether it took so long."""
        return self._session(CountingStorage(), batch_size, seconds, f"{seconds:.3f} s")

    def end(self, batch_size: int) -> None:
        """A session that is let come to its end; then all is as if the run had never been broken."""
        assert not self._session(CountingStorage(), batch_size, None, "the end")
        unbroken = self._campaign.unbroken
        for name, content in unbroken.files.items():
            assert (self._folder / name).read_bytes() == content, f"{self._folder}: {name} differs"
        assert self._keys == set(unbroken.entries)
        assert orjson.loads((self._folder / "manifest.json").read_bytes())["status"] == "complete"
        hidden = [path.name for path in self._folder.rglob(".*")]
        assert not hidden, f"{self._folder}: left behind: {hidden}"
        shutil.rmtree(self._folder)

    def _session(self, storage: CountingStorage, batch_size: int, seconds: float | None, what: str) -> bool:
        ending = self._campaign.session(self._folder, storage, batch_size, seconds)
        where = f"{self._folder} killed at {what}, batch size {batch_size}"
        found = list(entries_in(self._folder))
        keys = {entry.key for entry in found}
        assert len(found) == len(keys), f"{where}: doubled rows"
        assert self._keys <= keys, f"{where}: lost {sorted(self._keys - keys)}"
        for entry in found:
            assert entry == self._campaign.unbroken.entries[entry.key], f"{where}: another result: {entry}"
        self._check_result_files(where)
        self._keys = keys
        return ending.was_killed

    def _check_result_files(self, where: str) -> None:
        """A result file is there whole or not at all."""
        for name, content in self._campaign.unbroken.files.items():
            path = self._folder / name
            assert not path.exists() or path.read_bytes() == content, f"{where}: {name} is torn"


def entries_in(path: Path) -> Iterator[Entry]:
    """What the ledger of a folder holds; nothing before the run has its record."""
    folder = RunFolder(path)
    if folder.holds_a_run:
        with Ledger(folder, RunRecord.read(folder).fingerprint) as ledger:
            for _, place in ledger.recover():
                yield ledger.read(place)


def kills_of(kind: str, operations: Sequence[str]) -> list[tuple[int, Moment]]:
    """The places and moments of a kind of SWEEPS."""
    everywhere = range(len(operations))
    if kind == "every":
        return [(place, moment) for place in everywhere for moment in MOMENTS]
    return different_kills(operations, telling_places(operations) if kind == "telling" else everywhere)


def sweep(campaign: Campaign, kills: Iterable[tuple[int, Moment]]) -> None:
    """A run for each place and moment of a session: killed there, and again early in the next one."""
    for place, moment in kills:
        run = campaign.new_run()
        assert run.killed_at(place, moment, batch_size=4)
        run.killed_at(5 + place % 11, moment, batch_size=3)
        run.end(batch_size=16)


def kill_at_random(campaign: Campaign, num_kills: int, chance: random.Random) -> None:
    """Runs that are killed over and over, half of the times by the clock, until there were so many kills.

    A session that is not hit is a run that ended; then another one begins.
    """
    last = campaign.num_kills + num_kills
    while campaign.num_kills < last:
        run, is_hit = campaign.new_run(), True
        while is_hit and campaign.num_kills < last:
            batch_size = chance.choice(BATCH_SIZES)
            if chance.random() < 0.5:
                is_hit = run.killed_after(chance.uniform(0, campaign.unbroken.seconds), batch_size)
            else:
                place = chance.randrange(len(campaign.unbroken.operations))
                is_hit = run.killed_at(place, chance.choice(MOMENTS), batch_size)
        run.end(chance.choice(BATCH_SIZES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=200, help="at random")
    parser.add_argument("--sweep-rows", type=int, default=40, help="0: no sweep over all operations")
    parser.add_argument(
        "--sweep",
        choices=SWEEPS,
        default="different",
        help="over each operation after each other one, all that leave different disks, or all moments",
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    shared_tokenizer()  # what is loaded before a fork is not loaded after it
    if arguments.sweep_rows:
        small = Campaign(arguments.folder / "sweep", arguments.sweep_rows)
        operations = small.unbroken.operations
        sweep(small, kills_of(arguments.sweep, operations))
        print(f"{small.num_kills} kills at each operation of a run of {arguments.sweep_rows} rows")
    large = Campaign(arguments.folder / "random", arguments.rows)
    kill_at_random(large, arguments.kills, random.Random(arguments.seed))
    print(f"{large.num_kills} kills at random in runs of {arguments.rows} rows")


if __name__ == "__main__":
    main()
