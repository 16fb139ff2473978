"""Replicas that cannot go on, whether a row may be the cause, and who hangs: clocks and processes are set."""

import socket
from collections.abc import Callable, Container, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.launch.job_ranks import EndedRank
from mindbatch.launch.supervisor import ProcessState
from mindbatch.parallel.topology import Topology
from mindbatch.replicas.supervision import (
    LATE,
    LONGEST,
    LONGEST_TICK,
    SECONDS_TO_END,
    Doing,
    Failure,
    Hung,
    Supervision,
    Watch,
)

TWO_BY_TWO = Topology(2, 2)


class TwoByTwo:
    """Two replicas of two ranks that beat, whose clock and processes the test moves."""

    def __init__(self) -> None:
        self.now, self.has_ended = 100.0, list[EndedRank]()
        self.states: dict[int, ProcessState] = {}
        self.started: dict[int, int] = {}
        self.supervision = Supervision(self, TWO_BY_TWO, 60, lambda: self.now, self.states.get)
        for rank in range(4):
            host = socket.gethostname() if rank < 2 else "elsewhere"
            self.supervision.greet(rank, {"host": host, "pid": 1000 + rank})

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

    def pass_seconds(
        self, seconds: int, beating: Mapping[int, str], computing: Container[int] = ()
    ) -> list[Failure]:
        """Until something fails, or so long; each rank says what it does, some that they compute."""
        for _ in range(seconds):
            self.now += 1
            for rank, doing in beating.items():
                computed = self.now if rank in computing else 7.0
                beat = {"doing": doing, "steps": 5, "processor_seconds": computed}
                self.supervision.beat(rank, beat)
            if found := self.supervision.check():
                return found
        return []


@pytest.fixture
def job() -> TwoByTwo:
    return TwoByTwo()


@pytest.mark.parametrize(
    ("how", "may_be_a_row"),
    [("signal 9", True), ("signal 11", True), ("exit code 1", True), ("signal 15", False)],
)
def test_an_end_is_told_with_its_last_lines(job: TwoByTwo, how: str, may_be_a_row: bool) -> None:
    job.has_ended = [EndedRank(3, how, ("one", "two"))]
    details = ("rank 3: one", "rank 3: two")
    assert job.supervision.check() == [Failure(1, f"rank 3 ended with {how}", details, may_be_a_row)]


def test_a_rank_that_is_lost_with_its_host_blames_no_row(job: TwoByTwo) -> None:
    job.has_ended = [EndedRank(3, "was lost with its node vm", is_lost=True)]
    [failure] = job.supervision.check()
    assert (failure.reason, failure.may_be_a_row) == ("rank 3 was lost with its node vm", False)


def test_what_a_rank_says_is_its_replicas_failure(job: TwoByTwo) -> None:
    job.supervision.failed(1, ["out of everything", "more of it"])
    job.has_ended = [EndedRank(1, "exit code 1", ("a traceback",))]
    assert job.pass_seconds(5, dict.fromkeys((0, 2, 3), "step")) == [
        Failure(0, "rank 1: out of everything", ("rank 1: more of it",))
    ]


@pytest.mark.parametrize("end", ["killed", "lost", "cut off", "silent"])
def test_a_rank_that_fails_for_another_ones_end_is_not_the_cause(job: TwoByTwo, end: str) -> None:
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


def test_who_was_killed_is_named_before_those_that_ended_because_of_it(job: TwoByTwo) -> None:
    job.has_ended = [EndedRank(0, "exit code 1"), EndedRank(1, "signal 9"), EndedRank(2, "exit code 1")]
    assert [failure.reason for failure in job.supervision.check()] == [
        "rank 1 ended with signal 9",
        "rank 2 ended with exit code 1",
    ]


def test_a_connection_that_ended_waits_for_the_end_of_its_process(job: TwoByTwo) -> None:
    job.supervision.disconnected(2)
    assert job.supervision.check() == []
    job.now += SECONDS_TO_END + 0.1
    [failure] = job.supervision.check()
    assert failure == Failure(1, "rank 2: its connection has ended", ("rank 2: line of 2",), False)
    job.now += 100
    assert job.supervision.check() == []  # told once


def test_a_hung_rank_is_told_with_its_process_and_state(job: TwoByTwo) -> None:
    job.states[1001] = "stopped"
    [failure] = job.pass_seconds(100, {0: "idle", 2: "idle", 3: "idle"})
    assert failure == Failure(
        0,
        "rank 1 (process 1001, stopped): has not been heard from for 60 s (launch.hang_seconds=60)",
        ("rank 1: line of 1",),
        may_be_a_row=False,
    )


def test_ranks_that_hang_together_are_told_together(job: TwoByTwo) -> None:
    job.states |= {1000: "sleeping", 1001: "sleeping"}
    [failure] = job.pass_seconds(100, {0: "step", 1: "step", 2: "idle", 3: "idle"})
    who = "rank 0 (process 1000, sleeping), rank 1 (process 1001, sleeping)"
    assert failure.reason == f"{who}: step 5 has lasted 60 s (launch.hang_seconds=60)"
    assert failure.may_be_a_row


def test_a_rank_elsewhere_has_no_process_here(job: TwoByTwo) -> None:
    job.states[1003] = "running"  # another process of this machine
    job.pass_seconds(1, dict.fromkeys(range(4), "idle"))
    [failure] = job.pass_seconds(100, {0: "idle", 1: "idle", 2: "idle"})
    assert failure.reason == "rank 3: has not been heard from for 60 s (launch.hang_seconds=60)"
    assert not failure.may_be_a_row  # its host may be cut off


def test_a_step_that_computes_on_another_machine_is_no_hang(job: TwoByTwo) -> None:
    doing = {0: "idle", 1: "idle", 2: "step", 3: "step"}
    assert job.pass_seconds(200, doing, computing={3}) == []
    [failure] = job.pass_seconds(100, doing)
    assert failure.reason.startswith("rank 2, rank 3: step 5 has lasted 2")


def test_a_rank_that_computed_and_fell_silent_hangs(job: TwoByTwo) -> None:
    job.pass_seconds(10, dict.fromkeys(range(4), "step"), computing={3})
    [failure] = job.pass_seconds(100, {0: "idle", 1: "idle", 2: "idle"})
    assert failure.reason.startswith("rank 3: has not been heard from")


def test_a_rank_that_is_stopped_before_it_has_said_anything_is_known_by_who_started_it() -> None:
    job = TwoByTwo()
    job.supervision.begin(0)
    job.supervision.greet(0, {"host": socket.gethostname(), "pid": 1000})
    job.started[1], job.states[1001] = 1001, "stopped"
    [failure] = job.pass_seconds(100, dict.fromkeys((0, 2, 3), "loading"))
    assert failure.reason.startswith("rank 1 (process 1001, stopped): has not been heard from for 60 s")


def test_a_rank_that_the_others_wait_for_is_told_with_its_process(job: TwoByTwo) -> None:
    job.states |= {1000: "sleeping", 1001: "sleeping"}
    [failure] = job.pass_seconds(100, {0: "waiting", 1: "loading", 2: "idle", 3: "idle"})
    assert failure.reason.startswith(
        "rank 1 (process 1001, sleeping): the other ranks of the replica have waited for 6"
    )


HANG = 60.0
Play = Callable[[Watch, int], None]


def hear(watch: Watch, rank: int, doing: Doing, step: int) -> None:
    """A heartbeat; nobody takes one of a rank that has ended."""
    if rank in watch.ranks:
        watch.ranks[rank].hear(doing, step)


def watched(*replicas: int) -> Watch:
    """Ranks 0, 1, ... of the replicas given, which are loaded and idle; the clock stands at 0."""
    watch = Watch(HANG)
    for rank, replica in enumerate(replicas):
        watch.begin(rank, replica)
        hear(watch, rank, "idle", 0)
    assert watch.tick(0.0, {}) == []
    return watch


def play(
    watch: Watch,
    seconds: int,
    beats: Mapping[int, tuple[Doing, int]],
    states: Mapping[int, ProcessState] | None = None,
    start: int = 0,
) -> tuple[int, list[Hung]]:
    """A tick a second with the heartbeats given, until something hangs or time is over: when, and what."""
    for second in range(start + 1, start + seconds + 1):
        for rank, (doing, step) in beats.items():
            hear(watch, rank, doing, step)
        seen = {} if states is None else {rank: states[rank] for rank in watch.suspects if rank in states}
        if hung := watch.tick(float(second), seen):
            return second, hung
    return start + seconds, []


SILENT = "has not been heard from for 60 s"
IN_STEP: dict[int, tuple[Doing, int]] = {0: ("step", 7), 1: ("step", 7)}
WAITING: dict[int, tuple[Doing, int]] = {0: ("waiting", 0), 1: ("waiting", 0)}
WAITS_FOR_LOADING: dict[int, tuple[Doing, int]] = {0: ("waiting", 0), 1: ("loading", 0)}
OTHERS_IDLE: dict[int, tuple[Doing, int]] = {0: ("idle", 0), 2: ("idle", 0)}
ONE_RUNS: dict[int, ProcessState] = {0: "running", 1: "sleeping"}
ASLEEP: dict[int, ProcessState] = {0: "sleeping", 1: "sleeping"}


@pytest.mark.parametrize(
    ("replicas", "beats", "states", "second", "expected"),
    [
        ((0, 0, 1), OTHERS_IDLE, {1: "stopped"}, HANG, Hung(0, (1,), SILENT, True)),
        ((0, 0, 1), OTHERS_IDLE, {1: "sleeping"}, HANG, Hung(0, (1,), SILENT, True)),
        ((0, 0, 1), OTHERS_IDLE, {}, HANG, Hung(0, (1,), SILENT, True)),
        # on a loaded machine a rank may be silent, and a step that computes may take long, but not for ever
        ((0,), {}, {0: "running"}, LONGEST, Hung(0, (0,), "has not been heard from for 1800 s", True)),
        (
            (0, 0),
            IN_STEP,
            {0: "running", 1: "sleeping"},
            LONGEST,
            Hung(0, (0, 1), "step 7 has lasted 1800 s"),
        ),
        ((0, 0), IN_STEP, ASLEEP, HANG, Hung(0, (0, 1), "step 7 has lasted 60 s")),
        ((0, 0), WAITING, ASLEEP, HANG, Hung(0, (0, 1), "waiting has lasted 60 s")),
        # who waits for a rank that compiles or loads does not hang; another replica's excuses nobody
        ((0, 0), IN_STEP | {1: ("compiling", 7)}, {}, 500, None),
        ((0, 1), IN_STEP | {1: ("compiling", 7)}, {}, HANG, Hung(0, (0,), "step 7 has lasted 60 s")),
        ((0, 0), WAITS_FOR_LOADING, {0: "sleeping", 1: "running"}, 500, None),
        ((0, 0), WAITS_FOR_LOADING, {0: "sleeping"}, 500, None),  # on another machine: a slow disk
    ],
)
def test_who_hangs_and_when(
    replicas: tuple[int, ...],
    beats: dict[int, tuple[Doing, int]],
    states: dict[int, ProcessState],
    second: float,
    expected: Hung | None,
) -> None:
    longest = 500 if expected is None else 4000
    assert play(watched(*replicas), longest, beats, states) == (
        second,
        [] if expected is None else [expected],
    )


@pytest.mark.parametrize("state", ["sleeping", "stopped"])
def test_a_rank_that_never_comes_is_told_and_not_those_that_wait_for_it(state: ProcessState) -> None:
    second, hung = play(watched(0, 0), 100, WAITS_FOR_LOADING, {0: "sleeping", 1: state})
    assert HANG <= second <= HANG + LATE
    assert [each.ranks for each in hung] == [(1,)]


def test_the_silent_one_is_blamed_and_not_those_that_wait_for_it() -> None:
    """The others began their step before it fell silent, and reach the limit first."""
    watch = watched(0, 0, 0)
    play(watch, 2, {1: ("idle", 0), 0: ("step", 7), 2: ("step", 7)})
    _, hung = play(watch, 100, {0: ("step", 7), 2: ("step", 7)}, {1: "sleeping"}, start=2)
    assert [each.ranks for each in hung] == [(1,)]


def test_one_step_after_the_other_is_no_hang() -> None:
    watch = watched(0)
    for step in range(10):
        play(watch, 50, {0: ("step", step)}, start=50 * step)
    assert play(watch, 50, {0: ("step", 10)}, start=500) == (550, [])


@pytest.mark.parametrize("doing", ["loading", "compiling"])
def test_loading_and_compiling_hold_heartbeats_back(doing: Doing) -> None:
    watch = watched(0)
    hear(watch, 0, doing, 3)
    assert play(watch, int(LONGEST) - 1, {}, {0: "sleeping"})[1] == []
    assert play(watch, 1, {}, {0: "sleeping"}, start=int(LONGEST) - 1)[1] != []


def test_stopping_the_whole_tree_counts_as_one_tick() -> None:
    """Nobody ticks meanwhile; the ranks beat again when they go on, after the front has looked."""
    watch = watched(0, 0)
    for pause in range(100):
        now = 1000.0 * (pause + 1)
        assert watch.tick(now, {}) == []
        for rank in (0, 1):
            hear(watch, rank, "idle", 0)


def test_a_clock_that_is_set_back_counts_nothing() -> None:
    watch = watched(0)
    for now in [*range(50, 0, -1)] * 5:
        assert watch.tick(float(now), {}) == []


def test_ranks_that_have_ended_hang_no_more_and_restarted_ones_begin_anew() -> None:
    watch = watched(0, 0)
    play(watch, 59, {})
    watch.forget([0, 1])
    hear(watch, 0, "idle", 0)  # what a dead attempt has sent
    assert watch.suspects == []
    watch.begin(0, 0)
    assert play(watch, 59, {}, start=59)[1] == []


@given(st.lists(st.tuples(st.floats(0, 10_000), st.sampled_from(["beat", "nothing"])), max_size=60))
def test_whoever_beats_between_two_ticks_never_hangs(events: list[tuple[float, str]]) -> None:
    """However long the pauses: a rank is blamed for `HANG` seconds of ticks in which it was silent only."""
    watch, now, silent = watched(0), 0.0, 0.0
    for pause, event in events:
        now += pause
        silent += min(pause, LONGEST_TICK)
        if event == "beat":
            hear(watch, 0, "idle", 0)
            silent = 0.0
        assert bool(watch.tick(now, {})) == (silent >= HANG) or event == "beat"


def test_only_those_that_are_late_are_looked_at() -> None:
    watch = watched(0, 0, 1)
    play(watch, int(LATE), {0: ("idle", 0), 2: ("idle", 0)})
    assert watch.suspects == [0, 1]


def test_a_rank_that_says_nothing_on_another_machine_while_others_wait_is_told() -> None:
    watch = Watch(HANG)
    for rank in (0, 1):
        watch.begin(rank, 0)
    second, hung = play(watch, 100, {0: ("waiting", 0)}, {0: "sleeping"})
    assert HANG <= second <= HANG + LATE + 1
    assert [(each.ranks, each.is_silent) for each in hung] == [((1,), True)]
