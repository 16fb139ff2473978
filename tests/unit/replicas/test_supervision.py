"""Replicas that cannot go on, whether a row may be the cause, and who hangs: clocks and processes are set."""

import socket
from collections.abc import Container, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.launch.job_ranks import EndedRank
from mindbatch.launch.supervisor import ProcessState
from mindbatch.parallel.topology import Topology
from mindbatch.replicas.messages import boot_id
from mindbatch.replicas.supervision import (
    LATE,
    LONGEST,
    LONGEST_PAUSE,
    SECONDS_TO_END,
    Failure,
    Supervision,
)

HANG = 60
BEGIN = 100.0


class WatchedJob:
    """Replicas whose ranks beat, the first of them on this host; the test moves clock and processes."""

    def __init__(self, replicas: int = 2, size: int = 2, ranks_here: int = 2) -> None:
        self.now, self.has_ended = BEGIN, list[EndedRank]()
        self.states: dict[int, ProcessState] = {}
        self.started: dict[int, int] = {}
        self.looked_at: list[int] = []
        topology = Topology(replicas, size)
        self.supervision = Supervision(self, topology, HANG, lambda: self.now, self.state_of)
        for rank in range(replicas * size):
            self.greet(rank, is_here=rank < ranks_here)

    def greet(self, rank: int, *, is_here: bool = True) -> None:
        """Says hello, from this machine or from another one of its name."""
        boot = boot_id() if is_here else "another"
        self.supervision.greet(rank, {"host": socket.gethostname(), "boot": boot, "pid": 1000 + rank})

    def state_of(self, process: int) -> ProcessState | None:
        self.looked_at.append(process - 1000)
        return self.states.get(process)

    def ended(self) -> list[EndedRank]:
        found, self.has_ended = self.has_ended, []
        return found

    def process_id(self, rank: int) -> int | None:
        return self.started.get(rank)

    def last_lines(self, rank: int) -> tuple[str, ...]:
        return (f"line of {rank}",)

    def restart(self, replica: int, attempt: int) -> None:
        raise AssertionError("not for it to decide")

    end = restart

    def beat(self, rank: int, activity: str, steps: int = 5, computed: float = 7.0) -> None:
        beat = {"activity": activity, "steps": steps, "processor_seconds": computed}
        self.supervision.beat(rank, beat)

    def pass_seconds(
        self, seconds: float, beating: Mapping[int, str], computing: Container[int] = (), steps: int = 5
    ) -> list[Failure]:
        """Until something fails, or so long; each rank says what it does, some that they compute."""
        for _ in range(int(seconds)):
            self.now += 1
            for rank, activity in beating.items():
                self.beat(rank, activity, steps, self.now if rank in computing else 7.0)
            if found := self.supervision.check():
                return found
        return []


@pytest.fixture
def job() -> WatchedJob:
    return WatchedJob()


@pytest.mark.parametrize(
    ("how", "may_be_a_row"),
    [("signal 9", True), ("signal 11", True), ("exit code 1", True), ("signal 15", False)],
)
def test_an_end_is_told_with_its_last_lines(job: WatchedJob, how: str, may_be_a_row: bool) -> None:
    job.has_ended = [EndedRank(3, how, ("one", "two"))]
    details = ("rank 3: one", "rank 3: two")
    assert job.supervision.check() == [Failure(1, f"rank 3 ended with {how}", details, may_be_a_row)]


def test_a_rank_that_is_lost_with_its_host_blames_no_row(job: WatchedJob) -> None:
    job.has_ended = [EndedRank(3, "was lost with its node vm", is_lost=True)]
    [failure] = job.supervision.check()
    assert (failure.reason, failure.may_be_a_row) == ("rank 3 was lost with its node vm", False)


def test_what_a_rank_says_is_its_replicas_failure(job: WatchedJob) -> None:
    job.supervision.failed(1, ["out of everything", "more of it"])
    job.has_ended = [EndedRank(1, "exit code 1", ("a traceback",))]
    assert job.pass_seconds(5, dict.fromkeys((0, 2, 3), "step")) == [
        Failure(0, "rank 1: out of everything", ("rank 1: more of it",))
    ]


@pytest.mark.parametrize("end", ["killed", "lost", "cut off", "silent"])
def test_a_rank_that_fails_for_another_ones_end_is_not_the_cause(job: WatchedJob, end: str) -> None:
    """The leader says at once that its follower has gone; how that ended is known later."""
    is_lost = end == "lost"
    if end == "silent":
        job.pass_seconds(8, dict.fromkeys((0, 1, 2), "step"))
    if end == "cut off":
        job.supervision.disconnected(3)
    job.supervision.failed(2, ["ConnectionResetError(104)"])
    job.has_ended = [EndedRank(2, "exit code 1")]
    assert job.supervision.check() == []
    job.now += 0.5
    if end in ("killed", "lost"):
        job.has_ended = [EndedRank(3, "signal 15", is_lost=is_lost)]
    [failure] = job.pass_seconds(5, dict.fromkeys((0, 1), "step"))
    assert not failure.may_be_a_row
    named = {"cut off": "rank 3: its connection has ended", "silent": "rank 2: ConnectionResetError(104)"}
    assert failure.reason == named.get(end, "rank 3 ended with signal 15")
    assert ("rank 3 has not been heard from" in failure.details) == (end == "silent")


def test_who_was_killed_is_named_before_those_that_ended_because_of_it(job: WatchedJob) -> None:
    job.has_ended = [EndedRank(0, "exit code 1"), EndedRank(1, "signal 9"), EndedRank(2, "exit code 1")]
    assert [failure.reason for failure in job.supervision.check()] == [
        "rank 1 ended with signal 9",
        "rank 2 ended with exit code 1",
    ]


def test_a_connection_that_ended_waits_for_the_end_of_its_process(job: WatchedJob) -> None:
    job.supervision.disconnected(2)
    assert job.supervision.check() == []
    job.now += SECONDS_TO_END + 0.1
    [failure] = job.supervision.check()
    assert failure == Failure(1, "rank 2: its connection has ended", ("rank 2: line of 2",), False)
    job.now += 100
    assert job.supervision.check() == []  # told once


def test_a_hung_rank_is_told_with_its_process_and_state(job: WatchedJob) -> None:
    job.states[1001] = "stopped"
    [failure] = job.pass_seconds(100, {0: "idle", 2: "idle", 3: "idle"})
    assert failure == Failure(
        0,
        "rank 1 (process 1001, stopped): has not been heard from for 60 s (launch.hang_seconds=60)",
        ("rank 1: line of 1",),
        may_be_a_row=False,
    )


def test_a_step_that_computes_on_another_machine_is_no_hang(job: WatchedJob) -> None:
    activity = {0: "idle", 1: "idle", 2: "step", 3: "step"}
    assert job.pass_seconds(200, activity, computing={3}) == []
    [failure] = job.pass_seconds(100, activity)
    assert failure.reason.startswith("rank 2, rank 3: step 5 has lasted 2")


def test_a_rank_that_is_stopped_before_it_has_said_anything_is_known_by_who_started_it() -> None:
    job = WatchedJob()
    job.supervision.begin(0)
    job.greet(0)
    job.started[1], job.states[1001] = 1001, "stopped"
    [failure] = job.pass_seconds(100, dict.fromkeys((0, 2, 3), "loading"))
    assert failure.reason.startswith("rank 1 (process 1001, stopped): has not been heard from for 60 s")


def test_a_rank_that_the_others_wait_for_is_told_with_its_process(job: WatchedJob) -> None:
    job.states |= {1000: "sleeping", 1001: "sleeping"}
    [failure] = job.pass_seconds(100, {0: "waiting", 1: "loading", 2: "idle", 3: "idle"})
    assert failure.reason.startswith(
        "rank 1 (process 1001, sleeping): the other ranks of the replica have waited for 6"
    )


def idle(replicas: int, size: int) -> WatchedJob:
    """A job on this host whose ranks are loaded and idle."""
    job = WatchedJob(replicas, size, replicas * size)
    for rank in range(replicas * size):
        job.beat(rank, "idle")
    assert job.supervision.check() == []
    return job


def told(ranks: Mapping[int, str], reason: str) -> str:
    """The reason of a failure; ranks: the states of those to blame, empty where it is not known."""
    who = ", ".join(
        f"rank {rank} (process {1000 + rank}{state and ', '}{state})" for rank, state in ranks.items()
    )
    return f"{who}: {reason} (launch.hang_seconds=60)"


SILENT = "has not been heard from for 60 s"
IN_STEP = {0: "step", 1: "step"}
WAITING = {0: "waiting", 1: "waiting"}
WAITS_FOR_LOADING = {0: "waiting", 1: "loading"}
OTHERS_IDLE = dict.fromkeys((0, 2, 3), "idle")
BOTH_ASLEEP = {0: "sleeping", 1: "sleeping"}


@pytest.mark.parametrize(
    ("replicas", "beats", "states", "second", "expected"),
    [
        ((2, 2), OTHERS_IDLE, {1: "stopped"}, HANG, told({1: "stopped"}, SILENT)),
        ((2, 2), OTHERS_IDLE, {1: "sleeping"}, HANG, told({1: "sleeping"}, SILENT)),
        ((2, 2), OTHERS_IDLE, {}, HANG, told({1: ""}, SILENT)),
        # on a loaded machine a rank may be silent, and a step that computes may take long, but not for ever
        (
            (1, 1),
            {},
            {0: "running"},
            LONGEST,
            told({0: "running"}, "has not been heard from for 1800 s"),
        ),
        (
            (1, 2),
            IN_STEP,
            {0: "running", 1: "sleeping"},
            LONGEST,
            told({0: "running", 1: "sleeping"}, "step 5 has lasted 1800 s"),
        ),
        ((1, 2), IN_STEP, BOTH_ASLEEP, HANG, told(BOTH_ASLEEP, "step 5 has lasted 60 s")),
        ((1, 2), WAITING, BOTH_ASLEEP, HANG, told(BOTH_ASLEEP, "waiting has lasted 60 s")),
        # who waits for a rank that compiles or loads does not hang; another replica's excuses nobody
        ((1, 2), IN_STEP | {1: "compiling"}, {}, 500, None),
        ((2, 1), IN_STEP | {1: "compiling"}, {}, HANG, told({0: ""}, "step 5 has lasted 60 s")),
        ((1, 2), WAITS_FOR_LOADING, {0: "sleeping", 1: "running"}, 500, None),
        ((1, 2), WAITS_FOR_LOADING, {0: "sleeping"}, 500, None),  # on another machine: a slow disk
    ],
)
def test_who_hangs_and_when(
    replicas: tuple[int, int],
    beats: dict[int, str],
    states: dict[int, ProcessState],
    second: float,
    expected: str | None,
) -> None:
    job = idle(*replicas)
    job.states |= {1000 + rank: state for rank, state in states.items()}
    failures = job.pass_seconds(500 if expected is None else 4000, beats)
    assert [failure.reason for failure in failures] == ([] if expected is None else [expected])
    assert job.now - BEGIN == second


def test_the_silent_one_is_blamed_and_not_those_that_wait_for_it() -> None:
    """The others began their step before it fell silent, and reach the limit first."""
    job = idle(1, 3)
    job.pass_seconds(2, {1: "idle", 0: "step", 2: "step"})
    job.states[1001] = "sleeping"
    [failure] = job.pass_seconds(100, {0: "step", 2: "step"})
    assert failure.reason.startswith("rank 1 (process 1001, sleeping): ")


def test_one_step_after_the_other_is_no_hang() -> None:
    job = idle(1, 1)
    for step in range(11):
        assert job.pass_seconds(50, {0: "step"}, steps=step) == []


@pytest.mark.parametrize("activity", ["loading", "compiling"])
def test_loading_and_compiling_hold_heartbeats_back(activity: str) -> None:
    job = idle(1, 1)
    job.beat(0, activity)
    job.states[1000] = "sleeping"
    assert job.pass_seconds(LONGEST - 1, {}) == []
    assert job.pass_seconds(1, {}) != []


def test_stopping_the_whole_tree_counts_as_one_pause() -> None:
    """Nobody checks meanwhile; the ranks beat again when they go on, after the front has looked."""
    job = idle(1, 2)
    for _ in range(100):
        job.now += 1000.0
        assert job.supervision.check() == []
        for rank in (0, 1):
            job.beat(rank, "idle")


@given(st.lists(st.tuples(st.floats(1, 10_000), st.sampled_from(["beat", "nothing"])), max_size=60))
def test_whoever_beats_between_two_checks_never_hangs(events: list[tuple[float, str]]) -> None:
    """However long the pauses: a rank is blamed for `HANG` seconds of checks in which it was silent only."""
    job, silent = idle(1, 1), 0.0
    for pause, event in events:
        before, job.now = job.now, job.now + pause
        if event == "beat":
            job.beat(0, "idle")
            silent = 0.0
        silent += min(job.now - before, LONGEST_PAUSE)
        failures = job.supervision.check()
        assert bool(failures) == (silent >= HANG)
        if failures:
            return


def test_only_those_that_are_late_are_looked_at() -> None:
    job = idle(2, 2)
    job.pass_seconds(LATE, dict.fromkeys((0, 2, 3), "idle"))
    assert job.looked_at == []
    job.pass_seconds(1, dict.fromkeys((0, 2, 3), "idle"))
    assert job.looked_at == [0, 1]


def test_a_rank_that_says_nothing_on_another_machine_while_others_wait_is_told() -> None:
    job = WatchedJob(1, 2, ranks_here=1)
    job.states[1000] = "sleeping"
    [failure] = job.pass_seconds(100, {0: "waiting"})
    assert HANG <= job.now - BEGIN <= HANG + LATE + 1
    assert failure.reason.startswith("rank 1: ")
    assert not failure.may_be_a_row
