"""Adapters in few slots: every row is computed with its own, none goes while it is used, nobody starves."""

from collections import Counter
from dataclasses import replace
from typing import Any, NoReturn, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from shadow_model import (
    STRATEGIES,
    Letters,
    ShadowRunner,
    all_plain,
    drain,
    plain,
    request,
    run_all,
    settings,
)
from test_virtual_engines import ShadowStages
from test_virtual_engines import drain as drain_stages

from mindbatch.engine.adapter_slots import AdapterSlots, KnownAdapters, LiveAdapter
from mindbatch.engine.engine import Engine
from mindbatch.engine.request import Request
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import StageRunner, Step
from mindbatch.engine.virtual_engines import VirtualEngines
from mindbatch.io.errors import CheckpointError

NAMES = ("a", "b", "c", "d", "e")
KNOWN = KnownAdapters({**{name: LiveAdapter(name, f"digest of {name}") for name in NAMES}, "base": None})


class Slots(RuleBasedStateMachine):
    """Takes and releases in any order, as schedulers that share the slots do."""

    @initialize(num_slots=st.integers(1, 4), patience=st.integers(1, 5))
    def begin(self, num_slots: int, patience: int) -> None:
        self.slots = AdapterSlots(num_slots, patience)
        self.num_slots, self.patience = num_slots, patience
        self.loaded: dict[int, str] = {}
        self.held: Counter[str] = Counter()
        self.passed: dict[str, int] = {}

    @rule(name=st.sampled_from(NAMES))
    def take(self, name: str) -> None:
        if not self.slots.offers(name):
            self.passed.setdefault(name, 0)
            return
        number, must_load = self.slots.take(name)
        assert 1 <= number <= self.num_slots
        if must_load:
            assert self.held[self.loaded.get(number, "")] == 0, "a held adapter was replaced"
            self.loaded[number] = name
        assert self.loaded[number] == name
        self.held[name] += 1
        self.passed.pop(name, None)
        self.passed = {other: count + 1 for other, count in self.passed.items()}

    @precondition(lambda self: self.held.total())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted((+self.held).keys())))
        self.held[name] -= 1
        self.slots.release(name)

    @rule(name=st.sampled_from(NAMES))
    def withdraw(self, name: str) -> None:
        self.slots.withdraw(name)
        self.passed.pop(name, None)

    @invariant()
    def nobody_is_passed_for_ever(self) -> None:
        for count in getattr(self, "passed", {}).values():
            assert count < self.patience + len(NAMES)  # those that are overdue have their turns


TestSlots = Slots.TestCase


def adapted(key: str, prompt: list[int], adapter: str | None, **params: Any) -> Request:
    return replace(request(key, prompt, **params), adapter=adapter)


def make(limits: EngineSettings, slots: AdapterSlots) -> tuple[Engine, ShadowRunner]:
    runner = ShadowRunner(limits)
    return Engine(runner, limits, Letters, adapters=KNOWN, slots=slots), runner


rows = st.lists(
    st.tuples(
        st.sampled_from([*NAMES, "base", None]),
        st.sampled_from([*STRATEGIES]),
        st.integers(1, 14),
        st.integers(1, 6),
    ),
    min_size=1,
    max_size=14,
)


def requests_of(drawn: list[tuple[str | None, str, int, int]]) -> list[Request]:
    """Prompts that begin alike, so that blocks would be shared if adapters were not told apart."""
    return [
        adapted(
            f"row {n}",
            [1 + place % 3 for place in range(length)],
            name,
            max_new_tokens=new,
            **STRATEGIES[kind],
        )
        for n, (name, kind, length, new) in enumerate(drawn)
    ]


def alone(asked: Request) -> tuple[Any, ...]:
    engine, _ = make(settings(), AdapterSlots(1))
    return plain(run_all(engine, [asked])[asked.key])


@given(drawn=rows, num_slots=st.integers(1, 5), batch_size=st.integers(1, 6), num_blocks=st.integers(21, 60))
def test_each_row_gets_what_it_gets_alone(
    drawn: list[tuple[str | None, str, int, int]], num_slots: int, batch_size: int, num_blocks: int
) -> None:
    limits = settings(batch_size=batch_size, num_blocks=num_blocks)
    slots = AdapterSlots(num_slots, patience=4)
    engine, _ = make(limits, slots)
    asked = requests_of(drawn)
    assert all_plain(run_all(engine, asked)) == {each.key: alone(each) for each in asked}
    assert all(slots.offers(name) or slots.overdue for name in NAMES), "a slot is held for ever"


@given(drawn=rows, num_slots=st.integers(1, 3), stages=st.integers(2, 4))
def test_engines_over_stages_share_the_slots(
    drawn: list[tuple[str | None, str, int, int]], num_slots: int, stages: int
) -> None:
    limits = settings(batch_size=3)
    slots = AdapterSlots(num_slots, patience=4)
    runner = ShadowStages(limits, stages)
    engines = [
        Engine(runner, limits, Letters, adapters=KNOWN, slots=slots, cache_part=part)
        for part in range(stages)
    ]
    engine = VirtualEngines(engines, cast(StageRunner, runner))
    asked = requests_of(drawn)
    for each in asked:
        engine.add(each)
    assert all_plain(drain_stages(engine)) == {each.key: alone(each) for each in asked}


def test_rows_of_a_loaded_adapter_pass_one_that_waits_but_not_for_ever() -> None:
    engine, runner = make(settings(batch_size=2), AdapterSlots(1, patience=3))
    order = ["a", "b", *"aaaaaaaaa"]
    for number, name in enumerate(order):
        engine.add(adapted(f"{number}{name}", [1, 2, 3], name, max_new_tokens=3 + number % 2))
    finished: list[str] = []
    while engine.has_work:
        finished += [output.key for output in engine.step().finished]
    assert 2 <= finished.index("1b") <= 4
    assert runner.num_adapter_loads == 3  # a, b, a


def test_an_adapter_is_loaded_once_while_it_has_its_slot() -> None:
    engine, runner = make(settings(), AdapterSlots(2))
    for wave in range(3):
        for name in "ab":
            engine.add(adapted(f"{wave}{name}", [1, 2], name, max_new_tokens=2))
        drain(engine)
    assert runner.num_adapter_loads == 2


def test_a_row_whose_request_is_dropped_lets_the_others_go_on() -> None:
    slots = AdapterSlots(1, patience=1)
    engine, _ = make(settings(batch_size=4), slots)
    for number, name in enumerate("abaaaa"):
        engine.add(adapted(f"{number}", [1, 2], name, max_new_tokens=4 + number))
    for _ in range(3):
        engine.step()
    assert slots.overdue == "b"
    engine.abort({"1"})
    assert slots.overdue is None
    results, _ = drain(engine)
    assert {"2", "3", "4", "5"} <= results.keys()


def test_an_adapter_whose_load_failed_is_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the slot holds is not known; a request that ran with it would get another's tokens."""
    engine, runner = make(settings(), AdapterSlots(2))
    run = runner.run

    def fails(step: Step) -> NoReturn:
        raise CheckpointError("tensor 'x' has changed meanwhile")

    for name in "ab":
        engine.add(adapted(name, [1, 2], name, max_new_tokens=2))
    monkeypatch.setattr(runner, "run", fails)
    with pytest.raises(CheckpointError):
        engine.step()
    engine.abort()
    monkeypatch.setattr(runner, "run", run)
    for key in ("first", "second"):
        engine.add(adapted(key, [1, 2], "a", max_new_tokens=2))
    drain(engine)
    assert runner.num_adapter_loads == 1
