"""Notices that a replica cannot go on: a process that ended, a connection that is gone, ranks that hang."""

import math
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mindbatch.launch.job_ranks import EndedRank, JobRanks
from mindbatch.launch.supervisor import ProcessState, process_state
from mindbatch.parallel.topology import Topology

Doing = Literal["loading", "waiting", "compiling", "step", "idle"]
"""Activity that a rank reports. Loading and compiling may take long, and hold back the heartbeats; it waits
for ranks of its replica that have not come so far."""

_TAKING_LONG = ("loading", "compiling")

LONGEST_TICK = 2.0
"""Seconds that count between two ticks. More of them passed while this process was stopped or busy itself."""

LATE = 5.0
"""Seconds of silence after which one looks at the process."""

NEVER = math.inf
LONGEST = 1800.0
"""Seconds for one compilation, one part of loading, or a step that computes all the time."""


@dataclass(frozen=True)
class Hung:
    """Ranks of one replica that hang for the same reason.

    is_silent: not even a heartbeat has come.
    """

    replica: int
    ranks: tuple[int, ...]
    reason: str
    is_silent: bool = False


class _Watched:
    """One rank: seconds since it was heard, since it began what it does, and since it was seen stopped.

    *_not_running: the seconds of silence, and of the present step, in which its process did not run.
    process: its id, if it is on this machine. computed: processor seconds, as it said last.
    running_until, disconnected, failed: of the clock; faults: why it has failed, as it said.
    """

    def __init__(self, rank: int, replica: int) -> None:
        self.rank, self.replica = rank, replica
        self.doing: Doing = "loading"
        self.step = 0
        self.silent = self.silent_not_running = 0.0
        self.standing = self.standing_not_running = 0.0
        self.stopped = 0.0
        self.process: int | None = None
        self.computed: float | None = None
        self.running_until = 0.0
        self.disconnected = self.failed = NEVER
        self.faults: Sequence[str] = ()

    @property
    def is_late(self) -> bool:
        return self.silent >= LATE

    def gets_on(self, state: ProcessState | None) -> bool:
        """True if it makes progress that others may wait for; of another machine's no more is known than
        that it is heard."""
        if self.doing == "loading":
            return state == "running" or (state is None and not self.is_late)
        return self.doing == "compiling" or state == "running"

    def hear(self, doing: Doing, step: int) -> None:
        """A heartbeat came; `step` is the number of what it does."""
        self.silent = self.silent_not_running = 0.0
        if doing == "idle" or (doing, step) != (self.doing, self.step):
            self.standing = self.standing_not_running = 0.0
        self.doing, self.step = doing, step

    def count(self, seconds: float, state: ProcessState | None, is_held_up: bool) -> None:
        """`is_held_up`: another rank of its replica does something that this one waits for."""
        self.silent += seconds
        self.standing += seconds
        self.stopped = self.stopped + seconds if state == "stopped" else 0.0
        if state != "running":
            self.silent_not_running += seconds
            self.standing_not_running += 0.0 if is_held_up else seconds


class Watch:
    """Watches the ranks of a job. It reads no clock and no process: both are given to `tick`.

    hang_seconds: of silence, or of one step, after which a rank hangs. Time in which its process runs, or
    waits for a processor as on a loaded machine, does not count up to `LONGEST`; nor does time in which
    nobody ticked, as when the whole tree is stopped.
    """

    def __init__(self, hang_seconds: float) -> None:
        self._hang_seconds = hang_seconds
        self.ranks: dict[int, _Watched] = {}
        self._before: float | None = None

    def begin(self, rank: int, replica: int) -> None:
        """A rank was started, for the first time or again; it counts as loading until it says something."""
        self.ranks[rank] = _Watched(rank, replica)

    def forget(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self.ranks.pop(rank, None)

    @property
    def suspects(self) -> list[int]:
        """Ranks whose process should be looked at for the next tick."""
        late = {rank.replica for rank in self.ranks.values() if rank.is_late or _may_stand(rank)}
        return [rank for rank, watched in self.ranks.items() if watched.replica in late]

    def tick(self, now: float, states: Mapping[int, ProcessState]) -> list[Hung]:
        """Counts the time since the last tick; returns what hangs, at most one entry for each replica.

        now: seconds of a clock that is never set back. states: of the suspects that can be looked at; another
        machine's cannot.
        """
        seconds = 0.0 if self._before is None else min(max(now - self._before, 0.0), LONGEST_TICK)
        self._before = now
        replicas: dict[int, list[_Watched]] = {}
        for watched in self.ranks.values():
            replicas.setdefault(watched.replica, []).append(watched)
        for ranks in replicas.values():
            busy = {
                watched.rank
                for watched in ranks
                if watched.doing in _TAKING_LONG or states.get(watched.rank) == "running"
            }
            coming = {watched.rank for watched in ranks if watched.gets_on(states.get(watched.rank))}
            for watched in ranks:
                others = (coming if watched.doing == "waiting" else busy) - {watched.rank}
                watched.count(seconds, states.get(watched.rank), is_held_up=bool(others))
        hanging = (self._hung(replica, ranks) for replica, ranks in replicas.items())
        return [hung for hung in hanging if hung is not None]

    def _hung(self, replica: int, ranks: list[_Watched]) -> Hung | None:
        """Blames a rank that is stopped or silent before those that wait for it in a collective operation."""
        if not any(map(self._has_no_patience_left, ranks)):
            return None
        worst = max(ranks, key=lambda watched: (watched.stopped, watched.silent_not_running, watched.silent))
        if worst.stopped or worst.is_late:
            return Hung(replica, (worst.rank,), f"has not been heard from for {worst.silent:.0f} s", True)
        stuck = [watched for watched in ranks if self._has_no_patience_left(watched)]
        missing = [watched for watched in ranks if watched.doing != "waiting"]
        if stuck[0].doing == "waiting" and missing:
            reason = f"the other ranks of the replica have waited for {stuck[0].standing:.0f} s"
            return Hung(replica, tuple(watched.rank for watched in missing), reason)
        what = f"step {stuck[0].step}" if stuck[0].doing == "step" else stuck[0].doing
        return Hung(
            replica, tuple(watched.rank for watched in stuck), f"{what} has lasted {stuck[0].standing:.0f} s"
        )

    def _has_no_patience_left(self, rank: _Watched) -> bool:
        longest = max(LONGEST, self._hang_seconds)
        if rank.silent >= longest or (rank.doing != "idle" and rank.standing >= longest):
            return True
        if rank.doing in _TAKING_LONG:
            return rank.stopped > 0 and rank.silent >= self._hang_seconds
        return rank.silent_not_running >= self._hang_seconds or _stands(rank, self._hang_seconds)


def _stands(rank: _Watched, seconds: float) -> bool:
    """True if a step, or waiting, has lasted so long although nothing computed."""
    return rank.doing in ("step", "waiting") and rank.standing_not_running >= seconds


def _may_stand(rank: _Watched) -> bool:
    """True if a look must tell whether it hangs. Ranks that others wait for are believed until then."""
    return (rank.doing == "waiting" and rank.standing >= LATE) or _stands(rank, LATE)


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
        self._next_check = 0.0
        for replica in range(topology.data_parallel):
            self.begin(replica)

    def begin(self, replica: int) -> None:
        for rank in self._topology.ranks_of(replica):
            self._watch.begin(rank, replica)

    def _of(self, rank: int) -> _Watched:
        """The record of a rank; what comes of one that has ended is not kept."""
        return self._watch.ranks.get(rank) or _Watched(rank, self._replica_of(rank))

    def greet(self, rank: int, hello: Mapping[str, Any]) -> None:
        if hello.get("host") == socket.gethostname() and isinstance(hello.get("pid"), int):
            self._of(rank).process = hello["pid"]

    def beat(self, rank: int, beat: Mapping[str, Any]) -> None:
        """A rank has said what it does."""
        watched, computed = self._of(rank), float(beat["processor_seconds"])
        if watched.computed is not None and computed - watched.computed >= _COMPUTING:
            watched.running_until = self._clock() + LATE
        watched.computed = computed
        watched.hear(beat["doing"], beat["steps"])

    def disconnected(self, rank: int) -> None:
        watched = self._of(rank)
        watched.disconnected = min(watched.disconnected, self._clock())

    def failed(self, rank: int, faults: Sequence[str]) -> None:
        """A rank has said why it ends. That may be the end of another rank of its replica."""
        watched = self._of(rank)
        if watched.failed == NEVER:
            watched.failed, watched.faults = self._clock(), faults

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
            self._watch.forget(self._topology.ranks_of(failure.replica))
        return list(first.values())

    def _failures_of_ended(self) -> Iterable[Failure]:
        """Yields first what was killed or lost: the others of a replica may have ended because of it."""
        ended = sorted(self._ranks.ended(), key=lambda rank: not _is_a_cause(rank))
        for rank in ended:
            if self._of(rank.rank).failed < NEVER and not _is_a_cause(rank):
                continue  # it has said why
            yield Failure(
                self._replica_of(rank.rank),
                f"rank {rank.rank} {rank.told}",
                _lines(rank.rank, rank.last_lines),
                may_be_a_row=not rank.is_lost and rank.how not in _OF_THE_OPERATOR,
            )

    def _failures_of_disconnected(self, now: float) -> Iterable[Failure]:
        for watched in self._watch.ranks.values():
            if watched.failed == NEVER and now - watched.disconnected > SECONDS_TO_END:
                reason = f"rank {watched.rank}: its connection has ended"
                yield self._failure_of([watched.rank], reason, may_be_a_row=False)

    def _failures_of_failed(self, now: float) -> Iterable[Failure]:
        """Yields the failures that ranks have reported, unless another rank's end explains them."""
        ranks = self._watch.ranks.values()
        failed = [watched for watched in ranks if watched.failed < NEVER]
        for watched in sorted(failed, key=lambda watched: watched.failed):
            others = [other for other in ranks if other.replica == watched.replica and other.failed == NEVER]
            if any(other.disconnected < NEVER for other in others):
                continue  # how it has ended is yet to be told
            if not others or now - watched.failed > SECONDS_TO_EXPLAIN:
                silent = [other for other in others if other.is_late]
                reason, *more = (f"rank {watched.rank}: {fault}" for fault in watched.faults)
                more += [f"rank {other.rank} has not been heard from" for other in silent]
                yield Failure(watched.replica, reason, tuple(more), may_be_a_row=not silent)

    def _failures_of_hung(self, now: float) -> Iterable[Failure]:
        states = {
            rank: state for rank in self._watch.suspects if (state := self._state(rank, now)) is not None
        }
        for hung in self._watch.tick(now, states):
            who = ", ".join(self._described(rank, states.get(rank)) for rank in hung.ranks)
            are_stopped = any(states.get(rank) == "stopped" for rank in hung.ranks)
            are_elsewhere = all(self._of(rank).process is None for rank in hung.ranks)
            reason = f"{who}: {hung.reason} (launch.hang_seconds={self._hang_seconds:g})"
            may_be_a_row = not (are_stopped or (hung.is_silent and are_elsewhere))
            yield self._failure_of(hung.ranks, reason, may_be_a_row=may_be_a_row)

    def _state(self, rank: int, now: float) -> ProcessState | None:
        """Reads a process's state from the kernel; of another machine's, what it reported a moment ago."""
        process = self._process_of(rank)
        if process is not None:
            return self._state_of(process)
        return "running" if self._of(rank).running_until > now else None

    def _process_of(self, rank: int) -> int | None:
        """Process id that the rank has told, or who started it knows: a stopped one may have told nothing."""
        return self._of(rank).process or self._ranks.process_id(rank)

    def _described(self, rank: int, state: ProcessState | None) -> str:
        process = self._process_of(rank)
        known = [] if process is None else [f"process {process}"]
        known += [] if state is None else [state]
        return f"rank {rank} ({', '.join(known)})" if known else f"rank {rank}"

    def _failure_of(self, ranks: Sequence[int], reason: str, *, may_be_a_row: bool) -> Failure:
        details = [line for rank in ranks for line in _lines(rank, self._ranks.last_lines(rank))]
        return Failure(self._replica_of(ranks[0]), reason, tuple(details), may_be_a_row)

    def _replica_of(self, rank: int) -> int:
        return self._topology.coordinates(rank).replica


def _is_a_cause(ended: EndedRank) -> bool:
    """True if neither what the rank has said nor another rank's end explains this end."""
    return ended.is_lost or ended.how.startswith("signal")


def _lines(rank: int, last_lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"rank {rank}: {line}" for line in last_lines)
