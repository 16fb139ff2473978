"""Several engines over the stages of one model: the tokens of one engine, and no stage that waits."""

from collections import deque
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadow_model import (
    STRATEGIES,
    Letters,
    ShadowOutput,
    ShadowRunner,
    all_plain,
    make_engine,
    request,
    run_all,
    settings,
)

from mindbatch.engine.engine import Engine
from mindbatch.engine.request import Request, RequestOutput
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import StageRunner, Step
from mindbatch.engine.virtual_engines import VirtualEngines


class ShadowStages(ShadowRunner):
    """The shadow model behind other stages; notes how many steps were on their way when one was completed."""

    def __init__(self, limits: EngineSettings, stages: int) -> None:
        super().__init__(limits)
        self.cache = np.full((limits.num_blocks * stages, limits.block_size), -1, np.int64)
        self.announced: deque[Step] = deque()
        self.on_their_way: list[int] = []

    def announce(self, step: Step) -> Step:
        self.announced.append(step)
        return step

    def complete(self, inputs: Step) -> ShadowOutput:
        self.on_their_way.append(len(self.announced))
        assert self.announced.popleft() is inputs, "not in the order in which the stages compute"
        return self.run(inputs)


def make(limits: EngineSettings, stages: int) -> tuple[VirtualEngines, ShadowStages]:
    runner = ShadowStages(limits, stages)
    engines = [Engine(runner, limits, Letters, cache_part=part) for part in range(stages)]
    return VirtualEngines(engines, cast(StageRunner, runner)), runner


def drain(engine: VirtualEngines) -> dict[str, RequestOutput]:
    results: dict[str, RequestOutput] = {}
    while engine.has_work:
        results |= {output.key: output for output in engine.step().finished}
    assert engine.statistics.blocks_used == 0
    return results


def requests(count: int, choice: int = 0) -> list[Request]:
    params = [*STRATEGIES.values()]
    return [
        request(f"row {n}", range(1, 3 + n % 5), max_new_tokens=4 + n % 7, **params[choice * n % len(params)])
        for n in range(count)
    ]


@given(stages=st.integers(2, 4), count=st.integers(1, 12), blocks=st.integers(40, 90), cached=st.booleans())
def test_rows_get_the_tokens_of_one_engine(stages: int, count: int, blocks: int, cached: bool) -> None:
    limits = replace(settings(num_blocks=blocks, batch_size=4), use_past=cached)
    rows = [each for each in requests(count, 1) if cached or not each.params.num_draft_tokens]
    expected = all_plain(run_all(make_engine(settings()), rows))
    engine, _ = make(limits, stages)
    for each in rows:
        engine.add(each)
    assert all_plain(drain(engine)) == expected


def test_every_stage_has_a_step_to_compute() -> None:
    engine, runner = make(settings(), 3)
    for each in requests(9):
        engine.add(replace(each, params=replace(each.params, max_new_tokens=6)))
    drain(engine)
    assert {*runner.on_their_way[:-3]} == {3}
    assert engine.settings.batch_size == 3 * settings().batch_size


def test_an_abort_ends_the_steps_that_stages_have_begun() -> None:
    engine, runner = make(settings(), 2)
    rows = requests(4)
    for each in rows:
        engine.add(each)
    engine.step()
    assert len(runner.announced) == 1
    engine.abort({"row 0", "row 1"})
    assert not runner.announced
    left = drain(engine)
    assert all_plain(left) == all_plain(run_all(make_engine(settings()), rows[2:]))


@pytest.mark.parametrize("keys", [None, {f"row {n}" for n in range(5)}])
def test_nothing_comes_of_requests_that_were_all_dropped(keys: set[str] | None) -> None:
    engine, runner = make(settings(), 2)
    for each in requests(5):
        engine.add(each)
    engine.step()
    engine.abort(keys)
    assert not runner.announced
    events = []
    while engine.has_work:
        found = engine.step()
        assert not found.events
        assert not found.finished
        events.append(found)
    assert engine.statistics.blocks_used == 0
