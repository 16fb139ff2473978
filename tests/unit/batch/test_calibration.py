"""Short runs that measure the speed, over a generator and a clock that are told what to do."""

from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

import pytest

from mindbatch.batch.calibration import calibrate, sample_rows
from mindbatch.batch.index import RowIndex
from mindbatch.data.prompts import Prompt
from mindbatch.dataset.rows import DataRow, RowFailure
from mindbatch.decoding import DecodingParams
from mindbatch.engine.engine import StepResult
from mindbatch.engine.request import CompletionOutput, RequestOutput, StreamEvent
from mindbatch.engine.statistics import EngineStatistics
from mindbatch.errors import ConfigError

PARAMS = DecodingParams(max_new_tokens=2)


class OneRowAStep:
    """Gives each row two tokens in one step, which takes a second; a row without content is refused."""

    def __init__(self) -> None:
        self.now = 0.0
        self.passes: list[list[str]] = []
        self.limits: list[int | None] = []

    def steps(self, rows: Iterable[tuple[Prompt, DecodingParams]]) -> Generator[StepResult, None, None]:
        self.passes.append([])
        for prompt, params in rows:
            self.passes[-1].append(prompt.key)
            self.limits.append(params.max_new_tokens)
            self.now += 1
            if prompt.text == "bad":
                yield StepResult([], [RequestOutput.failed(prompt.key, "refused")])
                continue
            output = CompletionOutput(0, "ab", [1, 2], "length", 0.0)
            yield StepResult(
                [StreamEvent(prompt.key, 0, "ab", (1, 2), "length")],
                [RequestOutput(prompt.key, prompt.text, [1], [output])],
            )

    @property
    def statistics(self) -> EngineStatistics:
        raise NotImplementedError

    def clock(self) -> float:
        return self.now


def rows(count: int, text: str = "good") -> list[DataRow]:
    return [
        DataRow(key=str(place), source="rows", line=place + 1, content={"text": text}, overrides={})
        for place in range(count)
    ]


def test_half_of_the_rows_warm_up_and_the_others_are_timed() -> None:
    model = OneRowAStep()
    found = calibrate(model, rows(6), PARAMS, clock=model.clock)
    assert model.passes == [["0", "2", "4"], ["1", "3", "5"]]
    assert (found.seconds, found.generated_tokens, found.outputs, found.complete) == (3, 6, 3, True)
    assert found.rate == 2
    assert found.mean_output == 2


def test_rows_keep_their_own_parameters() -> None:
    model = OneRowAStep()
    own = DataRow(key="0", source="rows", line=1, content={"text": "x"}, overrides={"max_new_tokens": 9})
    calibrate(model, [own], PARAMS, clock=model.clock)
    assert set(model.limits) == {9}


def test_a_single_row_is_run_twice() -> None:
    model = OneRowAStep()
    assert calibrate(model, rows(1), PARAMS, clock=model.clock).outputs == 1
    assert model.passes == [["0"], ["0"]]


def test_it_ends_after_some_time_and_then_tells_no_length() -> None:
    model = OneRowAStep()
    found = calibrate(model, rows(100), PARAMS, longest=9.5, clock=model.clock)
    assert [len(keys) for keys in model.passes] == [10, 10]
    assert not found.complete
    assert found.rate == 2
    assert found.mean_output is None


def test_rows_that_are_all_refused_measure_nothing() -> None:
    model = OneRowAStep()
    with pytest.raises(ConfigError, match="none of the rows"):
        calibrate(model, rows(4, "bad"), PARAMS, clock=model.clock)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[RowIndex]:
    with RowIndex(tmp_path / "index") as index:
        for place, row in enumerate(rows(10)):
            index.add(2 * place, 2 * place, row)
            index.add(2 * place + 1, 2 * place + 1, RowFailure(None, "rows", 1, "read", "bad"))
        index.close_loading()
        yield index


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, [0]), (4, [0, 2, 5, 7]), (10, list(range(10))), (25, list(range(10)))],
)
def test_the_sample_is_spread_over_the_usable_rows(index: RowIndex, count: int, expected: list[int]) -> None:
    assert [int(row.key) for row in sample_rows(index, count)] == expected
