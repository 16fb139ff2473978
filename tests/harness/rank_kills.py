"""Kills and stops the processes of batch jobs over 2 x 2 ranks; each run must end as if nothing had been.

python rank_kills.py FOLDER [--rows 60] [--faults 60] [--seed 0] [--cuts 0]
Faults at random moments: a rank is killed by one of several signals or stopped, the front is killed,
terminated, interrupted or stopped with all of its ranks; --cuts: so many times, the network of the host of
one replica is cut for a while, which needs the rights to make network namespaces. Prints what it has done.
An assertion fails where a row was lost, doubled or torn, where a process is left, or where the results differ
from an unbroken run's by a byte.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson

from harness.forked_ranks import ForkedRanks
from harness.forks import FAILED, run_forked
from harness.job_kills import COMPARED, entries_in, write_data
from harness.networks import OtherHost, other_host
from mindbatch.io.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_TERMINATED
from mindbatch.io.interrupts import interrupt_outcome, signal_notes
from mindbatch.ledger.entries import Entry
from mindbatch.llm import LLM
from mindbatch.loading.build import LoadedEngine
from mindbatch.parallel.topology import Topology
from mindbatch.replicas import rank_links, remote_engine, supervision
from mindbatch.replicas.rank_links import RankLinks
from mindbatch.replicas.remote_engine import RemoteEngine
from mindbatch.run.batch_config import BatchConfig
from shadow_llm import make_engine
from shadow_ranks import KEY, AdmitsAll
from stub_job import job_config, make_job, shared_tokenizer

TOPOLOGY = Topology(data_parallel=2, model_parallel=2)
HANG_SECONDS = 0.6
MAX_RESTARTS = 1000
SECONDS_TO_END = 5.0
LONGEST_SESSION = 120.0
BLAMED = "the process that computed it ended"
ENDS = {0, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_TERMINATED, -signal.SIGKILL}

RANK_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGSTOP)
FRONT_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def hurry() -> None:
    """Signs of life, and looks at them, come often: otherwise each fault would take a minute to be seen."""
    rank_links.BEAT_SECONDS = 0.05
    supervision.LATE = 0.2
    supervision.CHECK_SECONDS = 0.02
    remote_engine.WAIT_SECONDS = 0.02


@dataclass(frozen=True)
class Unbroken:
    """A run in one process that nobody disturbed."""

    files: dict[str, bytes]
    entries: dict[str, Entry]


class Campaign:
    """Runs over one dataset in one folder, each with the same settings."""

    def __init__(self, folder: Path, num_rows: int, seed: int, host: OtherHost | None = None) -> None:
        """`host`: where the ranks of replica 1 are; None is this one."""
        folder.mkdir(parents=True)
        self.host = host
        self._folder = folder
        self._data = write_data(folder / "rows.jsonl", num_rows)
        self._num_runs = 0
        self.chance = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.num_restarts = self.num_blamed = 0
        self.unbroken = self._run_unbroken()

    def config(self, folder: Path) -> BatchConfig:
        """The settings, which sample, so that the results depend on more than the prompts."""
        decoding = {"do_sample": True, "temperature": 0.9, "seed": 5, "max_new_tokens": 12}
        return job_config(self._data, folder, key_column="id", decoding=decoding)

    def run(self, num_faults: int, fault: Callable[[Session], str]) -> None:
        """A run with at most so many faults, in as many sessions as it takes to come to its end."""
        self._num_runs += 1
        folder = self._folder / f"run{self._num_runs}"
        last, code = self.num_faults + num_faults, FAILED
        while code != EXIT_FAILED:  # that of a run which came to its end: some rows are bad
            code = self._session(folder, last, fault)
            self._check(folder, code)
        self._end(folder)

    @property
    def num_faults(self) -> int:
        return sum(self.faults.values())

    def _session(self, folder: Path, last: int, fault: Callable[[Session], str]) -> int:
        """One session, with faults until there were so many; its exit code."""
        session = Session(self.config(folder), self.host)
        try:
            while self.num_faults < last and session.lives_for(self.chance.uniform(0.0, 0.3)):
                self.faults[fault(session)] += 1
            return session.end()
        finally:
            self.num_restarts += max(0, session.num_started - TOPOLOGY.world_size) // 2
            session.clear_up()

    def _check(self, folder: Path, code: int) -> None:
        where = f"{folder}, exit code {code}"
        assert code in ENDS, where
        found = list(entries_in(folder)) if folder.exists() else []
        keys = [entry.key for entry in found]
        assert len(keys) == len(set(keys)), f"{where}: doubled rows"
        for entry in found:
            expected = self.unbroken.entries[entry.key]
            assert entry == expected or _is_blamed(entry), f"{where}: another result: {entry}"
        for name, content in self.unbroken.files.items():
            path = folder / name
            blamed = any(map(_is_blamed, found))
            assert not path.exists() or blamed or path.read_bytes() == content, f"{where}: {name} is torn"

    def _end(self, folder: Path) -> None:
        """Rows that were in two deaths by chance are run again; then all is as in an unbroken run."""
        if any(map(_is_blamed, entries_in(folder))):
            self.num_blamed += 1
            ending = run_forked(lambda send: make_job(self.config(folder), retry=True).run())
            assert ending.code == 0, "rows could not be run again"
        for name, content in self.unbroken.files.items():
            assert (folder / name).read_bytes() == content, f"{folder}: {name} differs"
        assert {entry.key for entry in entries_in(folder)} == set(self.unbroken.entries)
        assert orjson.loads((folder / "manifest.json").read_bytes())["status"] == "complete"
        hidden = [path.name for path in folder.rglob(".*")]
        assert not hidden, f"{folder}: left behind: {hidden}"
        shutil.rmtree(folder)

    def _run_unbroken(self) -> Unbroken:
        folder = self._folder / "unbroken"
        ending = run_forked(lambda send: make_job(self.config(folder)).run())
        assert ending.code == 0
        files = {name: (folder / name).read_bytes() for name in COMPARED}
        assert all(files.values()), "there are results and errors to compare"
        return Unbroken(files, {entry.key: entry for entry in entries_in(folder)})


def _is_blamed(entry: Entry) -> bool:
    return entry.kind == "error" and BLAMED in str(entry.body.get("reason"))


class Session:
    """One life of a job: a front and its ranks, in processes of their own. host: see `Campaign`."""

    def __init__(self, config: BatchConfig, host: OtherHost | None) -> None:
        self.ranks: dict[int, int] = {}  # processes, the present ones
        self.processes: set[int] = set()  # all that there were
        self.num_started = 0
        self._pending = b""
        self._reading, writing = os.pipe()
        sys.stdout.flush()
        self.front = os.fork()
        if self.front == 0:
            os.close(self._reading)
            _run_front(config, writing, host)
        os.close(writing)
        self._code: int | None = None

    def lives_for(self, seconds: float) -> bool:
        """Waits until the ranks are there and then so long, or until the front ends; whether it has not."""
        while len(self.ranks) < TOPOLOGY.world_size and self._read(LONGEST_SESSION):
            pass
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and self.code is None:
            self._read(min(left, 0.05))
        return self.code is None

    @property
    def code(self) -> int | None:
        """The front's exit code; None while it runs."""
        if self._code is None:
            process, status = os.waitpid(self.front, os.WNOHANG)
            if process:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def end(self) -> int:
        """Waits for the end of the front; after that no process is left, in a few seconds. Its exit code."""
        deadline = time.monotonic() + LONGEST_SESSION
        while self.code is None:
            assert time.monotonic() < deadline, "the job does not end"
            self._read(0.05)
        deadline = time.monotonic() + SECONDS_TO_END
        while self._read(deadline - time.monotonic()):  # each process of the job has an end of the pipe
            assert time.monotonic() < deadline, f"left running: {self.left()}"
        assert self.code is not None
        return self.code

    def left(self) -> list[int]:
        """The processes of its ranks that there are."""
        return [process for process in self.processes if Path(f"/proc/{process}").exists()]

    def clear_up(self) -> None:
        """After a failure too."""
        for process in (*self.processes, *([self.front] if self.code is None else [])):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        os.close(self._reading)

    def _read(self, seconds: float) -> bool:
        """Takes in what ranks have reported, waited for; whether more may come."""
        if select.select([self._reading], [], [], max(seconds, 0.0))[0]:
            chunk = os.read(self._reading, 65536)
            *lines, self._pending = (self._pending + chunk).split(b"\n")
            for line in lines:
                _, rank, process = line.split()
                self.ranks[int(rank)] = int(process)
                self.processes.add(int(process))
                self.num_started += 1
            return bool(chunk)
        return True


def _run_front(config: BatchConfig, writing: int, host: OtherHost | None) -> None:
    """Never returns."""

    def report(line: str) -> None:
        os.write(writing, line.encode() + b"\n")

    code = FAILED
    try:
        os.setsid()
        signal_notes.install()
        hurry()
        hosts = {} if host is None else {1: host}
        ranks = ForkedRanks(TOPOLOGY.data_parallel, shared_tokenizer(), report, hosts)
        with open(os.devnull, "w") as sys.stderr:
            code = _run_job(config, ranks, "127.0.0.1" if host is None else "0.0.0.0")
    except KeyboardInterrupt as interrupt:
        _, code = interrupt_outcome(type(interrupt))
    finally:
        os._exit(code)


def _run_job(config: BatchConfig, ranks: ForkedRanks, host: str) -> int:
    engine: RemoteEngine | None = None

    def load() -> LLM:
        nonlocal engine
        links = RankLinks(host, KEY, TOPOLOGY.world_size)
        checks = make_engine(shared_tokenizer())
        engine = RemoteEngine(
            checks.settings,
            checks,
            TOPOLOGY,
            links,
            ranks,
            AdmitsAll(),
            lambda text: None,
            MAX_RESTARTS,
            HANG_SECONDS,
        )
        ranks.start(links.address[1])
        engine.wait_until_ready()
        return LLM.over(LoadedEngine(engine, shared_tokenizer(), 0))

    return make_job(config, load=load).run()


def fault_of(campaign: Campaign) -> Callable[[Session], str]:
    """Faults at random; what was done, in words."""
    chance = campaign.chance

    def fault(session: Session) -> str:
        kind = chance.random()
        if kind < 0.7:
            number = chance.choice(RANK_SIGNALS)
            with suppress(ProcessLookupError):
                os.kill(session.ranks[chance.randrange(TOPOLOGY.world_size)], number)
            return f"rank {number.name}"
        if kind < 0.9:
            number = chance.choice(FRONT_SIGNALS)
            os.kill(session.front, number)
            return f"front {number.name}"
        return _stop_all(session)

    return fault


def _stop_all(session: Session) -> str:
    """The whole tree, for longer than a rank may be silent."""
    tree = [session.front, *session.ranks.values()]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for process in tree:
            with suppress(ProcessLookupError):
                os.kill(process, number)
        if number == signal.SIGSTOP:
            time.sleep(2 * HANG_SECONDS)
    return "all stopped for a while"


def cut_off(host: OtherHost) -> Callable[[Session], str]:
    """Cuts the network of a host for longer than its ranks may be silent."""

    def fault(session: Session) -> str:
        host.cut()
        try:
            time.sleep(2 * HANG_SECONDS)
        finally:
            host.heal()
        return "host cut off for a while"

    return fault


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cuts", type=int, default=0)
    arguments = parser.parse_args()
    shared_tokenizer()  # what is loaded before a fork is not loaded after it
    campaign = Campaign(arguments.folder, arguments.rows, arguments.seed)
    while (left := arguments.faults - campaign.num_faults) > 0:
        campaign.run(min(left, campaign.chance.randint(1, 6)), fault_of(campaign))
    show(campaign)
    if arguments.cuts:
        with other_host() as host:
            campaign = Campaign(arguments.folder / "cuts", arguments.rows, arguments.seed, host)
            while (left := arguments.cuts - campaign.num_faults) > 0:
                campaign.run(min(left, 3), cut_off(host))
            show(campaign)


def show(campaign: Campaign) -> None:
    for kind, count in sorted(campaign.faults.items()):
        print(f"{count} x {kind}")
    print(f"{campaign.num_restarts} replicas started again, {campaign.num_blamed} runs with rows to blame")
    print(f"{campaign.num_faults} faults")


if __name__ == "__main__":
    main()
