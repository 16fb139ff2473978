"""Detects replicas that cannot continue: ended processes, lost connections, ranks that hang."""

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

Activity = Literal["loading", "waiting", "compiling", "step", "idle"]
"""Activity that a rank reports. Loading and compiling may take long and delay heartbeats; a rank is waiting
for other ranks of its replica."""

_TAKING_LONG = ("loading", "compiling")

CHECK_SECONDS = 0.25

LONGEST_PAUSE = 2.0
"""Maximum of the seconds that count between two checks. If more pass, this process was stopped, or busy."""

LATE = 5.0
"""Seconds of silence after which the state of the process is read."""

NEVER = math.inf
LONGEST = 1800.0
"""Maximum seconds of a compilation, a part of loading, or a step that computes all the time."""

SECONDS_TO_END = 2.0
"""In which a process whose connection has ended is expected to end too, with an exit reason."""

SECONDS_TO_EXPLAIN = 1.0
"""In which the end of another rank is expected, if that caused the error of a rank."""

_COMPUTING = 0.1
"""Processor seconds between two heartbeats with which a rank on another machine counts as running."""

_OF_THE_OPERATOR = ("signal 1", "signal 2", "signal 15")  # SIGHUP, SIGINT, SIGTERM: no row causes these


class RankHealth:
    """The health of a rank.

    silent, active, stopped: seconds since its last heartbeat, in its present activity, and since it was first
        seen stopped.
    silent_not_running, active_not_running: the part of `silent` and `active` in which its process did not
        run.
    process: its process id, if it is on this machine. state: the state of the process in the last check, if
        that read it.
    computed: processor seconds in its last heartbeat.
    running_until, disconnected, failed: times of the clock. errors: the reported reasons of a failure.
    """

    def __init__(self, rank: int, replica: int) -> None:
        self.rank, self.replica = rank, replica
        self.activity: Activity = "loading"
        self.step = 0
        self.silent = self.silent_not_running = 0.0
        self.active = self.active_not_running = 0.0
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
        """True if other ranks of its replica may wait for it in a collective operation."""
        return self.activity in _TAKING_LONG or self.state == "running"

    @property
    def makes_progress(self) -> bool:
        """True if ranks that wait for it may expect it; on another machine, if it sends heartbeats."""
        if self.activity == "loading":
            return self.state == "running" or (self.state is None and not self.is_late)
        return self.activity == "compiling" or self.state == "running"

    @property
    def may_be_stuck(self) -> bool:
        """True if the state of its process must be read to know if it hangs."""
        return (self.activity == "waiting" and self.active >= LATE) or self.is_stuck(LATE)

    def is_stuck(self, seconds: float) -> bool:
        """True if a step, or waiting, has lasted that long while its process did not run."""
        return self.activity in ("step", "waiting") and self.active_not_running >= seconds

    def hear(self, activity: Activity, step: int) -> None:
        """Records a heartbeat; `step` is the number of the activity."""
        self.silent = self.silent_not_running = 0.0
        if activity == "idle" or (activity, step) != (self.activity, self.step):
            self.active = self.active_not_running = 0.0
        self.activity, self.step = activity, step

    def count(self, seconds: float, *, is_blocked: bool) -> None:
        """Counts seconds. is_blocked: this rank waits for another one of its replica."""
        self.silent += seconds
        self.active += seconds
        self.stopped = self.stopped + seconds if self.state == "stopped" else 0.0
        if self.state != "running":
            self.silent_not_running += seconds
            self.active_not_running += 0.0 if is_blocked else seconds


@dataclass(frozen=True)
class Failure:
    """The reason why a replica cannot continue.

    reason: one line. details: the last lines of its ranks, each with the rank.
    may_be_a_row: True if a request may be the cause.
    """

    replica: int
    reason: str
    details: tuple[str, ...] = ()
    may_be_a_row: bool = True


class Supervision:
    """Watches the ranks of a job by their messages and the states of their processes on this machine.

    hang_seconds: seconds of silence, or of one step, after which a rank hangs. Time in which its process runs
        or waits for a processor does not count up to `LONGEST`; neither does time without checks, as when
        all processes are stopped.
    clock: monotonic seconds. state_of: see `process_state`.
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
        self._health: dict[int, RankHealth] = {}
        self._before: float | None = None
        for replica in range(topology.data_parallel):
            self.begin(replica)

    def begin(self, replica: int) -> None:
        """Begins to watch a replica that was started; its ranks are loading until they report."""
        self._health |= {rank: RankHealth(rank, replica) for rank in self._topology.ranks_of(replica)}

    def _of(self, rank: int) -> RankHealth:
        """Returns the health of a rank; of an ended one, a record that is not kept."""
        return self._health.get(rank) or RankHealth(rank, self._replica_of(rank))

    def greet(self, rank: int, hello: Mapping[str, Any]) -> None:
        is_here = (hello.get("host"), hello.get("boot")) == (socket.gethostname(), boot_id())
        if is_here and isinstance(hello.get("pid"), int):
            self._of(rank).process = hello["pid"]

    def beat(self, rank: int, beat: Mapping[str, Any]) -> None:
        """Records the heartbeat of a rank."""
        health, computed = self._of(rank), float(beat["processor_seconds"])
        if health.computed is not None and computed - health.computed >= _COMPUTING:
            health.running_until = self._clock() + LATE
        health.computed = computed
        health.hear(beat["activity"], beat["steps"])

    def disconnected(self, rank: int) -> None:
        health = self._of(rank)
        health.disconnected = min(health.disconnected, self._clock())

    def failed(self, rank: int, errors: Sequence[str]) -> None:
        """Records the failure that a rank reported; another rank's end may have caused it."""
        health = self._of(rank)
        if health.failed == NEVER:
            health.failed, health.errors = self._clock(), errors

    def check(self) -> list[Failure]:
        """Returns the failures since the last call, one for each replica; checks every CHECK_SECONDS only."""
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
                self._health.pop(rank, None)
        return list(first.values())

    def _failures_of_ended(self) -> Iterable[Failure]:
        """Yields the failures of ended ranks: first the killed or lost, which may have ended others."""
        ended = sorted(self._ranks.ended(), key=lambda rank: not _is_a_cause(rank))
        for rank in ended:
            if self._of(rank.rank).failed < NEVER and not _is_a_cause(rank):
                continue  # it has reported the reason
            yield Failure(
                self._replica_of(rank.rank),
                f"rank {rank.rank} {rank.description}",
                _lines(rank.rank, rank.last_lines),
                may_be_a_row=not rank.is_lost and rank.exit_reason not in _OF_THE_OPERATOR,
            )

    def _failures_of_disconnected(self, now: float) -> Iterable[Failure]:
        for health in self._health.values():
            if health.failed == NEVER and now - health.disconnected > SECONDS_TO_END:
                reason = f"rank {health.rank}: its connection has ended"
                yield self._failure_of([health], reason, may_be_a_row=False)

    def _failures_of_failed(self, now: float) -> Iterable[Failure]:
        """Yields the failures that ranks have reported, unless another rank's end explains them."""
        ranks = self._health.values()
        failed = [health for health in ranks if health.failed < NEVER]
        for health in sorted(failed, key=lambda health: health.failed):
            others = [other for other in ranks if other.replica == health.replica and other.failed == NEVER]
            if any(other.disconnected < NEVER for other in others):
                continue  # its exit reason is not known yet
            if not others or now - health.failed > SECONDS_TO_EXPLAIN:
                silent = [other for other in others if other.is_late]
                reason, *more = (f"rank {health.rank}: {error}" for error in health.errors)
                more += [f"rank {other.rank} has not been heard from" for other in silent]
                yield Failure(health.replica, reason, tuple(more), may_be_a_row=not silent)

    def _failures_of_hung(self, now: float, seconds: float) -> Iterable[Failure]:
        """Counts the seconds since the last check; yields the failures of hung ranks, one for each
        replica."""
        for replica in range(self._topology.data_parallel):
            ranks = [self._health[rank] for rank in self._topology.ranks_of(replica) if rank in self._health]
            are_suspects = any(health.is_late or health.may_be_stuck for health in ranks)
            for health in ranks:
                health.state = self._state(health, now) if are_suspects else None
            busy = {health.rank for health in ranks if health.is_busy}
            coming = {health.rank for health in ranks if health.makes_progress}
            for health in ranks:
                others = (coming if health.activity == "waiting" else busy) - {health.rank}
                health.count(seconds, is_blocked=bool(others))
            if stuck := [health for health in ranks if self._has_no_patience_left(health)]:
                yield self._hang(ranks, stuck)

    def _hang(self, ranks: Sequence[RankHealth], stuck: Sequence[RankHealth]) -> Failure:
        """Returns the failure of a stopped or silent rank, before that of ranks that wait for it."""
        worst = max(ranks, key=lambda health: (health.stopped, health.silent_not_running, health.silent))
        if worst.stopped or worst.is_late:
            # No heartbeat has come: another machine may be disconnected.
            may_be_a_row = worst.process is not None
            reason = f"has not been heard from for {worst.silent:.0f} s"
            return self._hang_of([worst], reason, may_be_a_row=may_be_a_row)
        missing = [health for health in ranks if health.activity != "waiting"]
        seconds = f"{stuck[0].active:.0f} s"
        if stuck[0].activity == "waiting" and missing:
            return self._hang_of(missing, f"the other ranks of the replica have waited for {seconds}")
        activity = f"step {stuck[0].step}" if stuck[0].activity == "step" else stuck[0].activity
        return self._hang_of(stuck, f"{activity} has lasted {seconds}")

    def _hang_of(self, ranks: Sequence[RankHealth], reason: str, *, may_be_a_row: bool = True) -> Failure:
        may_be_a_row = may_be_a_row and all(health.state != "stopped" for health in ranks)
        ranks_text = ", ".join(map(self._described, ranks))
        text = f"{ranks_text}: {reason} (launch.hang_seconds={self._hang_seconds:g})"
        return self._failure_of(ranks, text, may_be_a_row=may_be_a_row)

    def _has_no_patience_left(self, rank: RankHealth) -> bool:
        longest = max(LONGEST, self._hang_seconds)
        if rank.silent >= longest or (rank.activity != "idle" and rank.active >= longest):
            return True
        if rank.activity in _TAKING_LONG:
            return rank.stopped > 0 and rank.silent >= self._hang_seconds
        return rank.silent_not_running >= self._hang_seconds or rank.is_stuck(self._hang_seconds)

    def _state(self, health: RankHealth, now: float) -> ProcessState | None:
        """Reads the state of a process from the kernel; on another machine, from its latest heartbeat."""
        process = self._process_of(health)
        if process is not None:
            return self._state_of(process)
        return "running" if health.running_until > now else None

    def _process_of(self, health: RankHealth) -> int | None:
        """Returns the process id that the rank or its starter reported: a stopped rank may have reported
        nothing."""
        return health.process or self._ranks.process_id(health.rank)

    def _described(self, health: RankHealth) -> str:
        process = self._process_of(health)
        known = [] if process is None else [f"process {process}"]
        known += [] if health.state is None else [health.state]
        return f"rank {health.rank} ({', '.join(known)})" if known else f"rank {health.rank}"

    def _failure_of(self, ranks: Sequence[RankHealth], reason: str, *, may_be_a_row: bool) -> Failure:
        lines = [_lines(health.rank, self._ranks.last_lines(health.rank)) for health in ranks]
        return Failure(ranks[0].replica, reason, tuple(chain.from_iterable(lines)), may_be_a_row)

    def _replica_of(self, rank: int) -> int:
        return self._topology.coordinates(rank).replica


def _is_a_cause(ended: EndedRank) -> bool:
    """True if neither what the rank has said nor another rank's end explains this end."""
    return ended.is_lost or ended.exit_reason.startswith("signal")


def _lines(rank: int, last_lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"rank {rank}: {line}" for line in last_lines)
