"""The figures of a plan: rows judged as the engine will judge them, what they take, and a measured rate."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.dataset.rows import DataRow, RowFailure
from mindbatch.decoding import DecodingParams
from mindbatch.engine.engine import StepResult
from mindbatch.engine.request import CompletionOutput, RequestOutput, StreamEvent
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.statistics import EngineStatistics
from mindbatch.io.errors import ConfigError
from mindbatch.loading.build import dry_run_engine
from mindbatch.loading.memory_check import MemoryDemand
from mindbatch.loading.providers import OpenedFolder
from mindbatch.loading.setup import EngineSetup
from mindbatch.parallel.topology import Topology
from mindbatch.prompts.prompts import Prompt
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.run.calibration import Calibration, calibrate, sample_rows
from mindbatch.run.index import RowIndex
from mindbatch.run.plan import (
    Lengths,
    Plan,
    RankMemory,
    RowTotals,
    count_rows,
    time_after,
    time_at,
)
from mindbatch.run.survey import RowCheck, RowTokens
from sizes import sizes

GREEDY = DecodingParams(max_new_tokens=10)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[RowIndex]:
    with RowIndex(tmp_path / "index") as index:
        yield index


def model(num_blocks: int = 20, seq_length: int = 64, tokenizer: Tokenizer | None = None) -> EngineSetup:
    settings = EngineSettings(batch_size=4, seq_length=seq_length, block_size=16, num_blocks=num_blocks)
    opened = OpenedFolder(Mock(nbytes=1000), sizes((500,), 1))
    return EngineSetup(ModelConfig(), RuntimeConfig(), opened, None, tokenizer, (), settings)


def fill(index: RowIndex, *rows: dict[str, Any] | RowFailure) -> None:
    for place, row in enumerate(rows):
        if isinstance(row, dict):
            item: DataRow | RowFailure = DataRow(key=f"k{place}", source="rows.jsonl", line=place + 1, **row)
        else:
            item = row
        index.add(place, place, item)
    index.close_loading()


def ids(count: int, **overrides: Any) -> dict[str, Any]:
    return {"content": {"token_ids": [7] * count}, "overrides": overrides}


def counted(index: RowIndex, setup: EngineSetup, params: DecodingParams = GREEDY) -> RowTotals:
    return count_rows(index, RowCheck(dry_run_engine(setup), setup.tokenizer, params))


def test_an_input_that_is_longer_than_a_step_is_told(index: RowIndex) -> None:
    """An encoder computes it at once."""
    fill(index, ids(12), ids(13))
    setup = model()
    settings = replace(setup.settings, decoder_start_id=0, max_batched_tokens=12)
    rows = counted(index, replace(setup, settings=settings))
    assert (rows.usable, rows.unusable) == (1, 1)
    [failure] = rows.failures
    assert "the input has 13 tokens that see each other" in failure.reason
    assert "set runtime.max_batched_tokens=13 or more" in failure.reason


def test_rows_that_the_engine_would_refuse_are_named(index: RowIndex) -> None:
    unread = RowFailure("k0", "rows.jsonl", 1, "read", "not valid JSON")
    bad = [ids(64), {"content": {"token_ids": [340]}}, {"content": {"text": "a"}}, ids(40)]
    fill(index, unread, *bad, ids(3))
    rows = counted(index, model(num_blocks=3))
    assert (rows.total, rows.usable, rows.unusable) == (6, 1, 5)
    first, *others = rows.failures
    assert first == unread
    assert [(failure.key, failure.line, failure.stage) for failure in others] == [
        ("k1", 2, "prompt"),
        ("k2", 3, "prompt"),
        ("k3", 4, "prompt"),
        ("k4", 5, "prompt"),
    ]
    reasons = ["the prompt has 64 tokens", "token id 340 is outside", "the model's folder has no tokenizer"]
    for failure, reason in zip(others, reasons, strict=False):
        assert failure.reason.startswith(reason)
    assert "cache blocks" in others[3].reason
    assert rows.prompts.total == 3


def plan(index: RowIndex, setup: EngineSetup, rate: float | None = None) -> Plan:
    rows = counted(index, setup)
    ranks = RankMemory(Topology(), partial(MemoryDemand.of, setup))
    return Plan(rows, setup, ranks, None if rate is None else time_at(rate, rows))


def test_sequences_that_fit_are_counted_in_whole_blocks(index: RowIndex) -> None:
    fill(index, ids(7), ids(7), ids(30))
    found = plan(index, model(num_blocks=20))
    assert (found.typical.tokens, found.typical.sequences) == (17, 10)
    assert (found.longest.tokens, found.longest.sequences) == (40, 6)


def test_as_json_all_figures_are_there(index: RowIndex) -> None:
    fill(index, ids(7), ids(20), ids(64))
    found = plan(index, model(), rate=4).as_json()
    assert found["rows"] == {
        "total": 3,
        "usable": 2,
        "unusable": 1,
        "first_failures": [
            {
                "key": "k2",
                "source": "rows.jsonl",
                "line": 3,
                "stage": "prompt",
                "reason": found["rows"]["first_failures"][0]["reason"],
            }
        ],
    }
    assert found["prompt_tokens"] == {
        "total": 27,
        "mean": 13.5,
        "median": 7,
        "p95": 20,
        "longest": 20,
        "histogram": [
            {"first": 4, "last": 7, "rows": 1},
            {"first": 8, "last": 15, "rows": 0},
            {"first": 16, "last": 31, "rows": 1},
        ],
    }
    assert found["output_tokens_at_most"]["total"] == 20
    assert found["sequence_tokens_at_most"]["longest"] == 30
    assert found["memory"]["weights_bytes"] == 2000
    assert found["memory"]["weights_stored_bytes"] == 1000
    assert found["memory"]["cache_tokens"] == 320
    assert found["sequences_that_fit"]["longest"] == {"tokens": 30, "sequences": 10}
    assert found["time"] == {
        "rate": 4,
        "generated_tokens": 20,
        "is_most": True,
        "measured": False,
        "startup_seconds": 0,
        "compile_seconds": 0,
        "seconds": 5,
    }


def test_a_calibration_becomes_a_time(index: RowIndex) -> None:
    """Ten rows of 10 tokens at most, that generate 4 of them, 2 tokens/s."""
    fill(index, *[ids(7)] * 10)
    rows = counted(index, model())
    measured = Calibration(seconds=4, generated=8, first_seconds=3, max_tokens=30, total_tokens=12)
    seen = time_after(measured, rows, startup_seconds=5.0)
    assert (seen.rate, seen.generated_tokens, seen.is_most, seen.measured) == (2, 40, False, True)
    assert (seen.startup_seconds, seen.compile_seconds, seen.seconds) == (5, 3, 5 + 3 + 20)
    unseen = time_after(replace(measured, max_tokens=0), rows, 0.0)
    assert (unseen.generated_tokens, unseen.is_most) == (100, True)


def lengths_of(values: Iterable[int]) -> Lengths:
    lengths = Lengths()
    for value in values:
        lengths.add(value)
    return lengths


def test_nothing_counted_is_zero() -> None:
    lengths = Lengths()
    assert (lengths.count, lengths.total, lengths.mean, lengths.longest) == (0, 0, 0, 0)
    assert lengths.quantile(0.5) == 0
    assert lengths.histogram() == []


@given(st.lists(st.integers(1, 300), min_size=1), st.sampled_from([0.25, 0.5, 0.95, 1.0]))
def test_a_quantile_is_the_smallest_length_that_covers_its_share(values: list[int], share: float) -> None:
    found = lengths_of(values).quantile(share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


@given(st.lists(st.integers(1, 5000), min_size=1))
def test_the_histogram_has_every_row_once(values: list[int]) -> None:
    parts = lengths_of(values).histogram()
    for part in parts:
        assert part.rows == sum(part.first <= value <= part.last for value in values)
    assert sum(part.rows for part in parts) == len(values)
    assert parts[0].rows
    assert parts[-1].rows


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
        self.asked: list[tuple[str, int | None]] = []
        self.statistics = NOTHING

    def steps(self, rows: Iterable[tuple[Prompt, DecodingParams]]) -> Generator[StepResult, None, None]:
        for prompt, params in rows:
            self.asked.append((prompt.key, params.max_new_tokens))
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
    own = DataRow(key="own", source="rows", line=1, content={"text": "x"}, overrides={"max_new_tokens": 9})
    found = measured(model, [*rows(3), own])
    assert model.asked == [("0", 2), ("1", 2), ("2", 2), ("own", 9)]
    assert (found.first_seconds, found.rate) == (5.0, 2.0)
    assert found.share == 2 / 8
    assert measured(OneRowAStep(), rows(1)).rate == 2 / 5, "a single step is a rate all the same"


def test_it_ends_after_some_time() -> None:
    found = measured(OneRowAStep(), rows(100))
    assert (found.first_seconds, found.seconds) == (5.0, 6.0)


def test_rows_that_cannot_be_run_measure_nothing() -> None:
    check = Mock(RowCheck, count=lambda row: RowFailure(row.key, "rows", 1, "prompt", "too long"))
    with pytest.raises(ConfigError, match="none of the rows"):
        measured(OneRowAStep(), rows(4, "bad"))
    with pytest.raises(ConfigError, match="none of the rows"):
        calibrate(OneRowAStep(), rows(4), PARAMS, check, 512)


def test_tokens_of_rows_that_have_not_ended_count() -> None:
    """One row of 8 tokens at most has ended after 2; another has 4 so far."""
    assert Calibration(max_tokens=8, total_tokens=2 + 4).share == 6 / 8
    assert Calibration(max_tokens=8, total_tokens=8 + 4).share == 1
    assert Calibration(max_tokens=0, total_tokens=4).share == 1


@pytest.mark.parametrize(("most", "length"), [(1, 40), (4, 10), (25, 4)])
def test_the_sample_is_a_quarter_at_most_and_spread_over_the_usable_rows(
    index: RowIndex, most: int, length: int
) -> None:
    """One row of each stretch of that length, not always the same one of it."""
    for place, row in enumerate(rows(40)):
        index.add(2 * place, 2 * place, row)
        index.add(2 * place + 1, 2 * place + 1, RowFailure(None, "rows", 1, "read", "bad"))
    index.close_loading()
    shuffled = [int(row.key) for row in sample_rows(index, most)]
    places = sorted(shuffled)
    assert [place // length for place in places] == list(range(40 // length))
    assert len({place % length for place in places}) > (most > 1)
    assert (shuffled == places) is (most == 1)
