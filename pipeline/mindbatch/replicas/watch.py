"""Decides which ranks of a job hang: from their heartbeats, and from what their processes do meanwhile."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from mindbatch.launch.supervisor import ProcessState

Doing = Literal["loading", "waiting", "compiling", "step", "idle"]
"""Activity that a rank reports. Loading and compiling may take long, and hold back the heartbeats; it waits
for ranks of its replica that have not come so far."""

LONGEST_TICK = 2.0
"""Seconds that count between two ticks. More of them passed while this process was stopped or busy itself."""

LATE = 5.0
"""Seconds of silence after which one looks at the process."""

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

    patience: the seconds of silence, and of the present step, in which its process did not run.
    """

    def __init__(self, rank: int, replica: int) -> None:
        self.rank, self.replica = rank, replica
        self.doing: Doing = "loading"
        self.step = 0
        self.silent = self.silent_not_running = 0.0
        self.standing = self.standing_not_running = 0.0
        self.stopped = 0.0

    @property
    def is_late(self) -> bool:
        return self.silent >= LATE

    @property
    def is_loading_or_compiling(self) -> bool:
        return self.doing in ("loading", "compiling")

    @property
    def waits(self) -> bool:
        return self.doing == "waiting"

    def gets_on(self, state: ProcessState | None) -> bool:
        """True if it makes progress that others may wait for; of another machine's no more is known than
        that it is heard."""
        if self.doing == "loading":
            return state == "running" or (state is None and not self.is_late)
        return self.doing == "compiling" or state == "running"

    def hear(self, doing: Doing, step: int) -> None:
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
        self._ranks: dict[int, _Watched] = {}
        self._before: float | None = None

    def begin(self, rank: int, replica: int) -> None:
        """A rank was started, for the first time or again; it counts as loading until it says something."""
        self._ranks[rank] = _Watched(rank, replica)

    def forget(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self._ranks.pop(rank, None)

    def hear(self, rank: int, doing: Doing, step: int) -> None:
        """A heartbeat came, or anything else that the rank sent; `step` is the number of what it does."""
        if rank in self._ranks:
            self._ranks[rank].hear(doing, step)

    def is_late(self, rank: int) -> bool:
        """True if a rank has not been heard from for a while."""
        return rank in self._ranks and self._ranks[rank].is_late

    @property
    def suspects(self) -> list[int]:
        """Ranks whose process should be looked at for the next tick."""
        late = {rank.replica for rank in self._ranks.values() if rank.is_late or _may_stand(rank)}
        return [rank for rank, watched in self._ranks.items() if watched.replica in late]

    def tick(self, now: float, states: Mapping[int, ProcessState]) -> list[Hung]:
        """Counts the time since the last tick; returns what hangs, at most one entry for each replica.

        now: seconds of a clock that is never set back. states: of the suspects that can be looked at; another
        machine's cannot.
        """
        seconds = 0.0 if self._before is None else min(max(now - self._before, 0.0), LONGEST_TICK)
        self._before = now
        replicas: dict[int, list[_Watched]] = {}
        for watched in self._ranks.values():
            replicas.setdefault(watched.replica, []).append(watched)
        for ranks in replicas.values():
            busy = {
                watched.rank
                for watched in ranks
                if watched.is_loading_or_compiling or states.get(watched.rank) == "running"
            }
            coming = {watched.rank for watched in ranks if watched.gets_on(states.get(watched.rank))}
            for watched in ranks:
                others = (coming if watched.waits else busy) - {watched.rank}
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
        if stuck[0].waits and (missing := [watched for watched in ranks if not watched.waits]):
            reason = f"the other ranks of the replica have waited for {stuck[0].standing:.0f} s"
            return Hung(replica, tuple(watched.rank for watched in missing), reason)
        what = f"step {stuck[0].step}" if stuck[0].doing == "step" else stuck[0].doing
        return Hung(
            replica, tuple(watched.rank for watched in stuck), f"{what} has lasted {stuck[0].standing:.0f} s"
        )

    def _has_no_patience_left(self, rank: _Watched) -> bool:
        if max(rank.silent, 0.0 if rank.doing == "idle" else rank.standing) >= max(
            LONGEST, self._hang_seconds
        ):
            return True
        if rank.is_loading_or_compiling:
            return rank.stopped > 0 and rank.silent >= self._hang_seconds
        return rank.silent_not_running >= self._hang_seconds or _stands(rank, self._hang_seconds)


def _stands(rank: _Watched, seconds: float) -> bool:
    """True if a step, or waiting, has lasted so long although nothing computed."""
    return rank.doing in ("step", "waiting") and rank.standing_not_running >= seconds


def _may_stand(rank: _Watched) -> bool:
    """True if a look must tell whether it hangs. Ranks that others wait for are believed until then."""
    return (rank.waits and rank.standing >= LATE) or _stands(rank, LATE)
