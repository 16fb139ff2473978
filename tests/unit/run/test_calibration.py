"""Short runs that measure a rate, over a generator and a clock told what to do."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from mindbatch.dataset.rows import DataRow, RowFailure
from mindbatch.decoding import DecodingParams
from mindbatch.engine.engine import StepResult
from mindbatch.engine.request import CompletionOutput, RequestOutput, StreamEvent
from mindbatch.engine.statistics import EngineStatistics
from mindbatch.io.errors import ConfigError
from mindbatch.prompts.prompts import Prompt
from mindbatch.run.calibration import Calibration, calibrate, sample_rows
from mindbatch.run.index import RowIndex
from mindbatch.run.survey import RowCheck, RowTokens

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


def measured(model: OneRowAStep, sample: list[DataRow], most: int = 8) -> Calibration:
    """most: tokens that a row may generate."""
    check = Mock(RowCheck, count=lambda row: RowTokens(6, most, 1))
    return calibrate(model, sample, PARAMS, check, 512, clock=model.clock)


def test_the_first_step_of_a_size_is_no_part_of_the_rate() -> None:
    model = OneRowAStep()
    found = measured(model, rows(4))
    assert model.keys == ["0", "1", "2", "3"]
    assert (found.first_seconds, found.rate) == (5.0, 2.0)
    assert found.share == 2 / 8


def test_a_single_step_is_a_rate_all_the_same() -> None:
    assert measured(OneRowAStep(), rows(1)).rate == 2 / 5


def test_rows_keep_their_own_parameters() -> None:
    model = OneRowAStep()
    own = DataRow(key="0", source="rows", line=1, content={"text": "x"}, overrides={"max_new_tokens": 9})
    measured(model, [own])
    assert model.limits == [9]


def test_it_ends_after_some_time() -> None:
    model = OneRowAStep()
    found = measured(model, rows(100))
    assert (found.first_seconds, found.seconds) == (5.0, 6.0)


def test_rows_that_cannot_be_run_measure_nothing() -> None:
    model = OneRowAStep()
    with pytest.raises(ConfigError, match="none of the rows"):
        measured(model, rows(4, "bad"))
    check = Mock(RowCheck, count=lambda row: RowFailure(row.key, "rows", 1, "prompt", "too long"))
    with pytest.raises(ConfigError, match="none of the rows"):
        calibrate(model, rows(4), PARAMS, check, 512, clock=model.clock)


def test_tokens_of_rows_that_have_not_ended_count() -> None:
    """One row of 8 tokens at most has ended after 2; another has 4 so far."""
    assert Calibration(most_tokens=8, total_tokens=2 + 4).share == 6 / 8
    assert Calibration(most_tokens=8, total_tokens=8 + 4).share == 1
    assert Calibration(most_tokens=0, total_tokens=4).share == 1


@pytest.fixture
def index(tmp_path: Path) -> Iterator[RowIndex]:
    with RowIndex(tmp_path / "index") as index:
        for place, row in enumerate(rows(40)):
            index.add(2 * place, 2 * place, row)
            index.add(2 * place + 1, 2 * place + 1, RowFailure(None, "rows", 1, "read", "bad"))
        index.close_loading()
        yield index


@pytest.mark.parametrize(("most", "length"), [(1, 40), (4, 10), (25, 4)])
def test_the_sample_is_a_quarter_at_most_and_spread_over_the_usable_rows(
    index: RowIndex, most: int, length: int
) -> None:
    """One row of each stretch of that length, not always the same one of it."""
    shuffled = [int(row.key) for row in sample_rows(index, most)]
    places = sorted(shuffled)
    assert [place // length for place in places] == list(range(40 // length))
    assert len({place % length for place in places}) > (most > 1)
    assert (shuffled == places) is (most == 1)
