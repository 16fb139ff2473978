"""Short runs that time steps, over a generator and a clock told what to do, and what is made of them."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mindbatch.dataset.rows import DataRow, RowFailure
from mindbatch.decoding import DecodingParams
from mindbatch.engine.engine import StepResult
from mindbatch.engine.request import CompletionOutput, RequestOutput, StreamEvent
from mindbatch.engine.statistics import EngineStatistics
from mindbatch.io.errors import ConfigError
from mindbatch.prompts.prompts import Prompt
from mindbatch.run.calibration import Calibration, StepTime, calibrate, sample_rows, steps_for
from mindbatch.run.index import RowIndex

PARAMS = DecodingParams(max_new_tokens=2)
NOTHING = EngineStatistics(
    steps=0, prompt_tokens=0, cached_prompt_tokens=0, computed_tokens=0, generated_tokens=0, drafted_tokens=0,
    accepted_tokens=0, num_preemptions=0, running_sequences=0, waiting_requests=0, blocks_used=0,
    blocks_total=1, cache_waste=0.0,
)  # fmt: skip


class OneRowAStep:
    """Gives each row two tokens in one step of a second, the first one of five; refuses a row that is bad."""

    def __init__(self) -> None:
        self.now = 0.0
        self.keys: list[str] = []
        self.limits: list[int | None] = []
        self.statistics = NOTHING

    def steps(self, rows: Iterable[tuple[Prompt, DecodingParams]]) -> Generator[StepResult, None, None]:
        for prompt, params in rows:
            self.keys.append(prompt.key)
            self.limits.append(params.max_new_tokens)
            if prompt.text == "bad":
                yield StepResult([], [RequestOutput.failed(prompt.key, "refused")])
                continue
            self.now += 1 if self.statistics.steps else 5
            self.statistics = replace(
                self.statistics,
                steps=self.statistics.steps + 1,
                prompt_tokens=self.statistics.prompt_tokens + 6,
                computed_tokens=self.statistics.computed_tokens + 8,
                generated_tokens=self.statistics.generated_tokens + 2,
            )
            output = CompletionOutput(0, "ab", [1, 2], "length", 0.0)
            yield StepResult(
                [StreamEvent(prompt.key, 0, "ab", (1, 2), "length")],
                [RequestOutput(prompt.key, prompt.text, [1], [output])],
            )

    def clock(self) -> float:
        return self.now


def rows(count: int, text: str = "good") -> list[DataRow]:
    return [
        DataRow(key=str(place), source="rows", line=place + 1, content={"text": text}, overrides={})
        for place in range(count)
    ]


def test_every_step_is_timed_and_the_first_of_a_shape_is_known() -> None:
    model = OneRowAStep()
    found = calibrate(model, rows(4), PARAMS, 512, clock=model.clock)
    assert model.keys == ["0", "1", "2", "3"]
    assert found.steps[0] == StepTime(5.0, 8, 2, is_first=True)
    assert set(found.steps[1:]) == {StepTime(1.0, 8, 2, is_first=False)}
    assert (found.lengths, found.unfinished) == ([2, 2, 2, 2], [])
    assert found.compile_seconds() == pytest.approx(4.0)
    assert found.seconds_of(10, 80, 20) == pytest.approx(10.0)
    assert found.computed_per_generated == 1.0


def test_rows_keep_their_own_parameters() -> None:
    model = OneRowAStep()
    own = DataRow(key="0", source="rows", line=1, content={"text": "x"}, overrides={"max_new_tokens": 9})
    calibrate(model, [own], PARAMS, 512, clock=model.clock)
    assert model.limits == [9]


def test_it_ends_after_some_time() -> None:
    model = OneRowAStep()
    found = calibrate(model, rows(100), PARAMS, 512, longest=9.5, clock=model.clock)
    assert len(found.steps) == 6  # 5 s and five times 1 s


def test_rows_that_are_all_refused_measure_nothing() -> None:
    model = OneRowAStep()
    with pytest.raises(ConfigError, match="none of the rows"):
        calibrate(model, rows(4, "bad"), PARAMS, 512, clock=model.clock)


def test_costs_of_prompts_and_of_tokens_are_told_apart() -> None:
    """A step of 1 s, 0.01 s a token computed and 0.1 s a token generated."""
    shapes = [(0, 4), (0, 8), (64, 4), (128, 8), (256, 2), (32, 16)]
    steps = [
        StepTime(1 + 0.01 * (prompt + running) + 0.1 * running, prompt + running, running, is_first=False)
        for prompt, running in shapes
    ]
    found = Calibration(steps, [10])
    assert found.seconds_of(7, 1000, 100) == pytest.approx(7 + 10 + 10)


def test_no_cost_is_negative() -> None:
    steps = [StepTime(1.0, 10, 1, is_first=False), StepTime(0.5, 20, 1, is_first=False)]
    found = Calibration(steps, [1])
    assert found.seconds_of(1, 0, 0) >= 0
    assert found.seconds_of(0, 1000, 0) >= 0


def test_lengths_are_like_those_that_were_seen() -> None:
    assert sorted(Calibration([], [10, 20]).sequence_lengths(4, 128)) == [10, 10, 20, 20]
    assert Calibration([], [10, 20]).sequence_lengths(1000, 15).count(15) == 500


def test_outputs_that_were_cut_off_count_as_longer() -> None:
    """Of four, one ended at 2; of two left beyond 5, one at 10: a quarter, 3/8, and 3/8 of no known end."""
    found = Calibration([], [2, 10], unfinished=[5, 12]).sequence_lengths(800, 128)
    assert [found.count(length) for length in (2, 10, 128)] == [200, 300, 300]
    assert Calibration([], [], unfinished=[50]).sequence_lengths(2, 128) == [128, 128]


@pytest.mark.parametrize(
    ("lengths", "batch_size", "steps"),
    [([3, 3, 3, 3], 4, 3), ([3, 3, 3, 3], 2, 6), ([9, 1, 1, 1], 2, 9), ([2] * 40_000, 10, 8000)],
)
def test_steps_until_all_have_ended(lengths: list[int], batch_size: int, steps: int) -> None:
    assert steps_for(lengths, batch_size) == steps


@pytest.fixture
def index(tmp_path: Path) -> Iterator[RowIndex]:
    with RowIndex(tmp_path / "index") as index:
        for place, row in enumerate(rows(40)):
            index.add(2 * place, 2 * place, row)
            index.add(2 * place + 1, 2 * place + 1, RowFailure(None, "rows", 1, "read", "bad"))
        index.close_loading()
        yield index


@pytest.mark.parametrize(("most", "expected"), [(1, [0]), (4, [0, 10, 20, 30]), (25, list(range(0, 40, 4)))])
def test_the_sample_is_a_quarter_at_most_and_spread_over_the_usable_rows(
    index: RowIndex, most: int, expected: list[int]
) -> None:
    assert [int(row.key) for row in sample_rows(index, most)] == expected
