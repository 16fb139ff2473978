"""Who hangs, and who is only stopped with all others, slow, or waiting: clocks and processes are given."""

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.launch.supervisor import ProcessState
from mindbatch.replicas.supervision import LATE, LONGEST, LONGEST_TICK, Doing, Hung, Watch

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


@pytest.mark.parametrize("state", ["stopped", "sleeping", None])
def test_a_silent_rank_hangs_after_the_time_given(state: ProcessState | None) -> None:
    watch = watched(0, 0, 1)
    states = {} if state is None else {1: state}
    second, hung = play(watch, 100, {0: ("idle", 0), 2: ("idle", 0)}, states)
    assert second == HANG
    assert hung == [Hung(0, (1,), "has not been heard from for 60 s", True)]


def test_a_rank_that_is_stopped_while_it_loads_hangs() -> None:
    watch = Watch(HANG)
    watch.begin(0, 0)
    watch.tick(0.0, {})
    assert play(watch, 100, {}, {0: "stopped"}) == (
        60,
        [Hung(0, (0,), "has not been heard from for 60 s", True)],
    )


def test_the_silent_one_is_blamed_and_not_those_that_wait_for_it() -> None:
    """The others began their step before it fell silent, and reach the limit first."""
    watch = watched(0, 0, 0)
    play(watch, 2, {1: ("idle", 0), 0: ("step", 7), 2: ("step", 7)})
    _, hung = play(watch, 100, {0: ("step", 7), 2: ("step", 7)}, {1: "sleeping"}, start=2)
    assert [each.ranks for each in hung] == [(1,)]


def test_ranks_that_wait_for_each_other_hang() -> None:
    watch = watched(0, 0)
    beats: dict[int, tuple[Doing, int]] = {0: ("step", 7), 1: ("step", 7)}
    second, hung = play(watch, 100, beats, {0: "sleeping", 1: "sleeping"})
    assert second == HANG
    assert hung == [Hung(0, (0, 1), "step 7 has lasted 60 s")]


def test_one_step_after_the_other_is_no_hang() -> None:
    watch = watched(0)
    for step in range(10):
        play(watch, 50, {0: ("step", step)}, start=50 * step)
    assert play(watch, 50, {0: ("step", 10)}, start=500) == (550, [])


def test_a_step_that_computes_may_take_long_but_not_for_ever() -> None:
    watch = watched(0, 0)
    beats: dict[int, tuple[Doing, int]] = {0: ("step", 7), 1: ("step", 7)}
    second, hung = play(watch, 4000, beats, {0: "running", 1: "sleeping"})
    assert second == LONGEST
    assert hung[0].reason == "step 7 has lasted 1800 s"


def test_on_a_loaded_machine_a_rank_may_be_silent() -> None:
    watch = watched(0)
    second, hung = play(watch, 4000, {}, {0: "running"})
    assert (second, hung[0].ranks) == (LONGEST, (0,))


@pytest.mark.parametrize("doing", ["loading", "compiling"])
def test_loading_and_compiling_hold_heartbeats_back(doing: Doing) -> None:
    watch = watched(0)
    hear(watch, 0, doing, 3)
    assert play(watch, int(LONGEST) - 1, {}, {0: "sleeping"})[1] == []
    assert play(watch, 1, {}, {0: "sleeping"}, start=int(LONGEST) - 1)[1] != []


def test_who_waits_for_a_rank_that_compiles_does_not_hang() -> None:
    watch = watched(0, 0)
    assert play(watch, 500, {0: ("step", 7), 1: ("compiling", 7)})[1] == []


def test_another_replica_that_compiles_excuses_nobody() -> None:
    watch = watched(0, 1)
    assert play(watch, 100, {0: ("step", 7), 1: ("compiling", 7)})[1] != []


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


WAITS_FOR_LOADING: Mapping[int, tuple[Doing, int]] = {0: ("waiting", 0), 1: ("loading", 0)}


@pytest.mark.parametrize("state", ["sleeping", "stopped"])
def test_a_rank_that_never_comes_is_told_and_not_those_that_wait_for_it(state: ProcessState) -> None:
    watch = watched(0, 0)
    second, hung = play(watch, 100, WAITS_FOR_LOADING, {0: "sleeping", 1: state})
    assert HANG <= second <= HANG + LATE
    assert [each.ranks for each in hung] == [(1,)]


def test_a_rank_that_says_nothing_on_another_machine_while_others_wait_is_told() -> None:
    watch = Watch(HANG)
    for rank in (0, 1):
        watch.begin(rank, 0)
    second, hung = play(watch, 100, {0: ("waiting", 0)}, {0: "sleeping"})
    assert HANG <= second <= HANG + LATE + 1
    assert [(each.ranks, each.is_silent) for each in hung] == [((1,), True)]


@pytest.mark.parametrize("state", ["running", None])
def test_who_waits_for_a_rank_that_loads_does_not_hang(state: ProcessState | None) -> None:
    """None: on another machine, where a slow disk takes no processor."""
    watch = watched(0, 0)
    states: dict[int, ProcessState] = {0: "sleeping"} | ({} if state is None else {1: state})
    assert play(watch, 500, WAITS_FOR_LOADING, states)[1] == []


def test_ranks_that_all_wait_hang() -> None:
    watch = watched(0, 0)
    beats: dict[int, tuple[Doing, int]] = {0: ("waiting", 0), 1: ("waiting", 0)}
    second, hung = play(watch, 100, beats, {0: "sleeping", 1: "sleeping"})
    assert second == HANG
    assert hung == [Hung(0, (0, 1), "waiting has lasted 60 s")]
