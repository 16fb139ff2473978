"""Notices that a replica cannot go on: a process that ended, a connection that is gone, ranks that hang."""

import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindbatch.launch.job_ranks import EndedRank, JobRanks
from mindbatch.launch.supervisor import ProcessState, process_state
from mindbatch.parallel.topology import Topology
from mindbatch.replicas.watch import LATE, Watch

CHECK_SECONDS = 0.25

SECONDS_TO_END = 2.0
"""In which a process whose connection has ended is expected to end too, to be asked how."""

SECONDS_TO_EXPLAIN = 1.0
"""In which a rank whose error is the end of another one is expected to be explained by that."""

_COMPUTING = 0.1
"""Processor seconds between two signs of life, with which a rank on another machine counts as running."""

_OF_THE_OPERATOR = ("signal 1", "signal 2", "signal 15")  # SIGHUP, SIGINT, SIGTERM: no row causes these


@dataclass(frozen=True)
class Failure:
    """Reason why a replica cannot go on.

    reason: one line. details: the last lines of ranks, each after its rank.
    may_be_a_row: whether what it computed may be the cause.
    """

    replica: int
    reason: str
    details: tuple[str, ...] = ()
    may_be_a_row: bool = True


class Supervision:
    """Watches the ranks of a job through what they send and what this machine knows of their processes.

    clock: seconds, never set back. state_of: see `process_state`.
    """

    def __init__(
        self,
        ranks: JobRanks,
        topology: Topology,
        hang_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        state_of: Callable[[int], ProcessState | None] = process_state,
    ) -> None:
        self._ranks, self._topology = ranks, topology
        self._hang_seconds = hang_seconds
        self._clock, self._state_of = clock, state_of
        self._watch = Watch(hang_seconds)
        self._processes: dict[int, int] = {}  # of the ranks on this machine
        self._computed: dict[int, float] = {}  # processor seconds, as a rank said last
        self._running_until: dict[int, float] = {}
        self._disconnected: dict[int, float] = {}
        self._failed: dict[int, tuple[float, Sequence[str]]] = {}  # when, and the faults
        self._next_check = 0.0
        for replica in range(topology.data_parallel):
            self.begin(replica)

    def begin(self, replica: int) -> None:
        """The ranks of a replica were started, for the first time or anew."""
        self.forget(replica)
        for rank in self._topology.ranks_of(replica):
            self._watch.begin(rank, replica)

    def forget(self, replica: int) -> None:
        """The ranks of a replica are being ended."""
        ranks = self._topology.ranks_of(replica)
        self._watch.forget(ranks)
        known: tuple[dict[int, Any], ...] = (self._processes, self._computed, self._running_until)
        for of_ranks in (*known, self._disconnected, self._failed):
            for rank in ranks:
                of_ranks.pop(rank, None)

    def greet(self, rank: int, hello: Mapping[str, Any]) -> None:
        """A rank has said who it is."""
        if hello.get("host") == socket.gethostname() and isinstance(hello.get("pid"), int):
            self._processes[rank] = hello["pid"]

    def beat(self, rank: int, beat: Mapping[str, Any]) -> None:
        """A rank has said what it does."""
        computed = float(beat["processor_seconds"])
        if computed - self._computed.get(rank, computed) >= _COMPUTING:
            self._running_until[rank] = self._clock() + LATE
        self._computed[rank] = computed
        self._watch.hear(rank, beat["doing"], beat["steps"])

    def disconnected(self, rank: int) -> None:
        self._disconnected.setdefault(rank, self._clock())

    def failed(self, rank: int, faults: Sequence[str]) -> None:
        """A rank has said why it ends. That may be the end of another rank of its replica."""
        self._failed.setdefault(rank, (self._clock(), faults))

    def check(self) -> list[Failure]:
        """Lists the failures since the last call, one for each replica; looks every CHECK_SECONDS only."""
        now = self._clock()
        if now < self._next_check:
            return []
        self._next_check = now + CHECK_SECONDS
        failures = [
            *self._failures_of_ended(),
            *self._failures_of_disconnected(now),
            *self._failures_of_failed(now),
            *self._failures_of_hung(now),
        ]
        first: dict[int, Failure] = {}
        for failure in failures:
            first.setdefault(failure.replica, failure)
        for replica in first:
            self.forget(replica)
        return list(first.values())

    def _failures_of_ended(self) -> Iterable[Failure]:
        """Yields first what was killed or lost: the others of a replica may have ended because of it."""
        ended = sorted(self._ranks.ended(), key=lambda rank: not _is_a_cause(rank))
        for rank in ended:
            if rank.rank in self._failed and not _is_a_cause(rank):
                continue  # it has said why
            yield Failure(
                self._replica_of(rank.rank),
                f"rank {rank.rank} {rank.told}",
                _lines(rank),
                may_be_a_row=not rank.is_lost and rank.how not in _OF_THE_OPERATOR,
            )

    def _failures_of_disconnected(self, now: float) -> Iterable[Failure]:
        for rank, since in self._disconnected.items():
            if rank not in self._failed and now - since > SECONDS_TO_END:
                yield self._failure_of([rank], f"rank {rank}: its connection has ended", may_be_a_row=False)

    def _failures_of_failed(self, now: float) -> Iterable[Failure]:
        """Yields the failures that ranks have reported, unless another rank's end explains them."""
        for rank, (since, faults) in self._failed.items():
            replica = self._replica_of(rank)
            others = [rank for rank in self._topology.ranks_of(replica) if rank not in self._failed]
            if any(other in self._disconnected for other in others):
                continue  # how it has ended is yet to be told
            if not others or now - since > SECONDS_TO_EXPLAIN:
                silent = [other for other in others if self._watch.is_late(other)]
                reason, *more = (f"rank {rank}: {fault}" for fault in faults)
                more += [f"rank {other} has not been heard from" for other in silent]
                yield Failure(replica, reason, tuple(more), may_be_a_row=not silent)

    def _failures_of_hung(self, now: float) -> Iterable[Failure]:
        states = {
            rank: state for rank in self._watch.suspects if (state := self._state(rank, now)) is not None
        }
        for hung in self._watch.tick(now, states):
            who = ", ".join(self._described(rank, states.get(rank)) for rank in hung.ranks)
            are_stopped = any(states.get(rank) == "stopped" for rank in hung.ranks)
            may_be_cut_off = hung.is_silent and not self._processes.keys() & {*hung.ranks}
            reason = f"{who}: {hung.reason} (launch.hang_seconds={self._hang_seconds:g})"
            may_be_a_row = not (are_stopped or may_be_cut_off)
            yield self._failure_of(hung.ranks, reason, may_be_a_row=may_be_a_row)

    def _state(self, rank: int, now: float) -> ProcessState | None:
        """Reads a process's state from the kernel; of another machine's, what it reported a moment ago."""
        process = self._process_of(rank)
        if process is not None:
            return self._state_of(process)
        return "running" if self._running_until.get(rank, 0.0) > now else None

    def _process_of(self, rank: int) -> int | None:
        """Process id that the rank has told, or who started it knows: a stopped one may have told nothing."""
        return self._processes.get(rank) or self._ranks.process_id(rank)

    def _described(self, rank: int, state: ProcessState | None) -> str:
        process = self._process_of(rank)
        known = [] if process is None else [f"process {process}"]
        known += [] if state is None else [state]
        return f"rank {rank} ({', '.join(known)})" if known else f"rank {rank}"

    def _failure_of(self, ranks: Iterable[int], reason: str, *, may_be_a_row: bool) -> Failure:
        ranks = list(ranks)
        details = [
            line for rank in ranks for line in _lines(EndedRank(rank, "", self._ranks.last_lines(rank)))
        ]
        return Failure(self._replica_of(ranks[0]), reason, tuple(details), may_be_a_row)

    def _replica_of(self, rank: int) -> int:
        return self._topology.coordinates(rank).replica


def _is_a_cause(ended: EndedRank) -> bool:
    """True if neither what the rank has said nor another rank's end explains this end."""
    return ended.is_lost or ended.how.startswith("signal")


def _lines(ended: EndedRank) -> tuple[str, ...]:
    return tuple(f"rank {ended.rank}: {line}" for line in ended.last_lines)
