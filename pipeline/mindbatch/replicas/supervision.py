"""Notices that a replica cannot go on: a process that ended, a connection that is gone, ranks that hang."""

import math
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from mindbatch.launch.job_ranks import EndedRank, JobRanks
from mindbatch.launch.supervisor import ProcessState, process_state
from mindbatch.parallel.topology import Topology
from mindbatch.replicas.messages import boot_id

Doing = Literal["loading", "waiting", "compiling", "step", "idle"]
"""Activity that a rank reports. Loading and compiling may take long, and hold back the heartbeats; it waits
for ranks of its replica that have not come so far."""

_TAKING_LONG = ("loading", "compiling")

CHECK_SECONDS = 0.25

LONGEST_PAUSE = 2.0
"""Seconds that count between two checks. If more pass, this process was stopped, or busy itself."""

LATE = 5.0
"""Seconds of silence after which one looks at the process."""

NEVER = math.inf
LONGEST = 1800.0
"""Seconds for one compilation, one part of loading, or a step that computes all the time."""

SECONDS_TO_END = 2.0
"""In which a process whose connection has ended is expected to end too, to be asked how."""

SECONDS_TO_EXPLAIN = 1.0
"""In which a rank whose error is the end of another one is expected to be explained by that."""

_COMPUTING = 0.1
"""Processor seconds between two signs of life, with which a rank on another machine counts as running."""

_OF_THE_OPERATOR = ("signal 1", "signal 2", "signal 15")  # SIGHUP, SIGINT, SIGTERM: no row causes these


class _Watched:
    """One rank: seconds since it was heard, since it began what it does, and since it was seen stopped.

    *_not_running: the seconds of silence, and of the present step, in which its process did not run.
    process: its id, if it is on this machine. state: of that, where it was looked at in the last check.
    computed: processor seconds, as it said last.
    running_until, disconnected, failed: of the clock; errors: why it has failed, as it said.
    """

    def __init__(self, rank: int, replica: int) -> None:
        self.rank, self.replica = rank, replica
        self.doing: Doing = "loading"
        self.step = 0
        self.silent = self.silent_not_running = 0.0
        self.standing = self.standing_not_running = 0.0
        self.stopped = 0.0
        self.process: int | None = None
        self.state: ProcessState | None = None
        self.computed: float | None = None
        self.running_until = 0.0
        self.disconnected = self.failed = NEVER
        self.errors: Sequence[str] = ()

    @property
    def is_late(self) -> bool:
        return self.silent >= LATE

    @property
    def is_busy(self) -> bool:
        """True if it does something that the others of its replica wait for in a collective operation."""
        return self.doing in _TAKING_LONG or self.state == "running"

    @property
    def gets_on(self) -> bool:
        """True if it makes progress that others may wait for before they begin; of another machine's no more
        is known than that it is heard."""
        if self.doing == "loading":
            return self.state == "running" or (self.state is None and not self.is_late)
        return self.doing == "compiling" or self.state == "running"

    @property
    def may_stand(self) -> bool:
        """True if a look must tell whether it hangs. Ranks that others wait for are believed until then."""
        return (self.doing == "waiting" and self.standing >= LATE) or self.stands(LATE)

    def stands(self, seconds: float) -> bool:
        """True if a step, or waiting, has lasted so long although nothing computed."""
        return self.doing in ("step", "waiting") and self.standing_not_running >= seconds

    def hear(self, doing: Doing, step: int) -> None:
        """A heartbeat came; `step` is the number of what it does."""
        self.silent = self.silent_not_running = 0.0
        if doing == "idle" or (doing, step) != (self.doing, self.step):
            self.standing = self.standing_not_running = 0.0
        self.doing, self.step = doing, step

    def count(self, seconds: float, *, is_held_up: bool) -> None:
        """`is_held_up`: another rank of its replica does something that this one waits for."""
        self.silent += seconds
        self.standing += seconds
        self.stopped = self.stopped + seconds if self.state == "stopped" else 0.0
        if self.state != "running":
            self.silent_not_running += seconds
            self.standing_not_running += 0.0 if is_held_up else seconds


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

    hang_seconds: of silence, or of one step, after which a rank hangs. Time in which its process runs, or
    waits for a processor as on a loaded machine, does not count up to `LONGEST`; nor does time in which
    nobody checked, as when the whole tree is stopped.
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
        self._watched: dict[int, _Watched] = {}
        self._before: float | None = None
        for replica in range(topology.data_parallel):
            self.begin(replica)

    def begin(self, replica: int) -> None:
        """A replica was started, for the first time or again; its ranks are loading until they say more."""
        self._watched |= {rank: _Watched(rank, replica) for rank in self._topology.ranks_of(replica)}

    def _of(self, rank: int) -> _Watched:
        """The record of a rank; what comes of one that has ended is not kept."""
        return self._watched.get(rank) or _Watched(rank, self._replica_of(rank))

    def greet(self, rank: int, hello: Mapping[str, Any]) -> None:
        is_here = (hello.get("host"), hello.get("boot")) == (socket.gethostname(), boot_id())
        if is_here and isinstance(hello.get("pid"), int):
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

    def failed(self, rank: int, errors: Sequence[str]) -> None:
        """A rank has said why it ends. That may be the end of another rank of its replica."""
        watched = self._of(rank)
        if watched.failed == NEVER:
            watched.failed, watched.errors = self._clock(), errors

    def check(self) -> list[Failure]:
        """Lists the failures since the last call, one for each replica; looks every CHECK_SECONDS only."""
        now = self._clock()
        seconds = 0.0
        if self._before is not None:
            if now - self._before < CHECK_SECONDS:
                return []
            seconds = min(now - self._before, LONGEST_PAUSE)
        self._before = now
        failures = [
            *self._failures_of_ended(),
            *self._failures_of_disconnected(now),
            *self._failures_of_failed(now),
            *self._failures_of_hung(now, seconds),
        ]
        first: dict[int, Failure] = {}
        for failure in failures:
            first.setdefault(failure.replica, failure)
            for rank in self._topology.ranks_of(failure.replica):
                self._watched.pop(rank, None)
        return list(first.values())

    def _failures_of_ended(self) -> Iterable[Failure]:
        """Yields first what was killed or lost: the others of a replica may have ended because of it."""
        ended = sorted(self._ranks.ended(), key=lambda rank: not _is_a_cause(rank))
        for rank in ended:
            if self._of(rank.rank).failed < NEVER and not _is_a_cause(rank):
                continue  # it has said why
            yield Failure(
                self._replica_of(rank.rank),
                f"rank {rank.rank} {rank.description}",
                _lines(rank.rank, rank.last_lines),
                may_be_a_row=not rank.is_lost and rank.exit_reason not in _OF_THE_OPERATOR,
            )

    def _failures_of_disconnected(self, now: float) -> Iterable[Failure]:
        for watched in self._watched.values():
            if watched.failed == NEVER and now - watched.disconnected > SECONDS_TO_END:
                reason = f"rank {watched.rank}: its connection has ended"
                yield self._failure_of([watched], reason, may_be_a_row=False)

    def _failures_of_failed(self, now: float) -> Iterable[Failure]:
        """Yields the failures that ranks have reported, unless another rank's end explains them."""
        ranks = self._watched.values()
        failed = [watched for watched in ranks if watched.failed < NEVER]
        for watched in sorted(failed, key=lambda watched: watched.failed):
            others = [other for other in ranks if other.replica == watched.replica and other.failed == NEVER]
            if any(other.disconnected < NEVER for other in others):
                continue  # how it has ended is yet to be told
            if not others or now - watched.failed > SECONDS_TO_EXPLAIN:
                silent = [other for other in others if other.is_late]
                reason, *more = (f"rank {watched.rank}: {error}" for error in watched.errors)
                more += [f"rank {other.rank} has not been heard from" for other in silent]
                yield Failure(watched.replica, reason, tuple(more), may_be_a_row=not silent)

    def _failures_of_hung(self, now: float, seconds: float) -> Iterable[Failure]:
        """Counts the seconds since the last check; yields what hangs, at most once for each replica."""
        for replica in range(self._topology.data_parallel):
            ranks = [
                self._watched[rank] for rank in self._topology.ranks_of(replica) if rank in self._watched
            ]
            are_suspects = any(watched.is_late or watched.may_stand for watched in ranks)
            for watched in ranks:
                watched.state = self._state(watched, now) if are_suspects else None
            busy = {watched.rank for watched in ranks if watched.is_busy}
            coming = {watched.rank for watched in ranks if watched.gets_on}
            for watched in ranks:
                others = (coming if watched.doing == "waiting" else busy) - {watched.rank}
                watched.count(seconds, is_held_up=bool(others))
            if stuck := [watched for watched in ranks if self._has_no_patience_left(watched)]:
                yield self._hang(ranks, stuck)

    def _hang(self, ranks: Sequence[_Watched], stuck: Sequence[_Watched]) -> Failure:
        """Blames a rank that is stopped or silent before those that wait for it in a collective operation."""
        worst = max(ranks, key=lambda watched: (watched.stopped, watched.silent_not_running, watched.silent))
        if worst.stopped or worst.is_late:
            # Not even a heartbeat has come: of another machine, that may be cut off.
            may_be_a_row = worst.process is not None
            reason = f"has not been heard from for {worst.silent:.0f} s"
            return self._hang_of([worst], reason, may_be_a_row=may_be_a_row)
        missing = [watched for watched in ranks if watched.doing != "waiting"]
        standing = f"{stuck[0].standing:.0f} s"
        if stuck[0].doing == "waiting" and missing:
            return self._hang_of(missing, f"the other ranks of the replica have waited for {standing}")
        what = f"step {stuck[0].step}" if stuck[0].doing == "step" else stuck[0].doing
        return self._hang_of(stuck, f"{what} has lasted {standing}")

    def _hang_of(self, ranks: Sequence[_Watched], reason: str, *, may_be_a_row: bool = True) -> Failure:
        may_be_a_row = may_be_a_row and all(watched.state != "stopped" for watched in ranks)
        who = ", ".join(map(self._described, ranks))
        text = f"{who}: {reason} (launch.hang_seconds={self._hang_seconds:g})"
        return self._failure_of(ranks, text, may_be_a_row=may_be_a_row)

    def _has_no_patience_left(self, rank: _Watched) -> bool:
        longest = max(LONGEST, self._hang_seconds)
        if rank.silent >= longest or (rank.doing != "idle" and rank.standing >= longest):
            return True
        if rank.doing in _TAKING_LONG:
            return rank.stopped > 0 and rank.silent >= self._hang_seconds
        return rank.silent_not_running >= self._hang_seconds or rank.stands(self._hang_seconds)

    def _state(self, watched: _Watched, now: float) -> ProcessState | None:
        """Reads a process's state from the kernel; of another machine's, what it reported a moment ago."""
        process = self._process_of(watched)
        if process is not None:
            return self._state_of(process)
        return "running" if watched.running_until > now else None

    def _process_of(self, watched: _Watched) -> int | None:
        """Process id that the rank has told, or who started it knows: a stopped one may have told nothing."""
        return watched.process or self._ranks.process_id(watched.rank)

    def _described(self, watched: _Watched) -> str:
        process = self._process_of(watched)
        known = [] if process is None else [f"process {process}"]
        known += [] if watched.state is None else [watched.state]
        return f"rank {watched.rank} ({', '.join(known)})" if known else f"rank {watched.rank}"

    def _failure_of(self, ranks: Sequence[_Watched], reason: str, *, may_be_a_row: bool) -> Failure:
        lines = [_lines(watched.rank, self._ranks.last_lines(watched.rank)) for watched in ranks]
        return Failure(ranks[0].replica, reason, tuple(chain.from_iterable(lines)), may_be_a_row)

    def _replica_of(self, rank: int) -> int:
        return self._topology.coordinates(rank).replica


def _is_a_cause(ended: EndedRank) -> bool:
    """True if neither what the rank has said nor another rank's end explains this end."""
    return ended.is_lost or ended.exit_reason.startswith("signal")


def _lines(rank: int, last_lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"rank {rank}: {line}" for line in last_lines)
