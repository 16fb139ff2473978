"""The figures of a plan: rows judged as the engine will judge them, and what they take."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.dataset.rows import DataRow, RowFailure
from mindbatch.decoding import DecodingParams
from mindbatch.engine.settings import EngineSettings
from mindbatch.loading.build import dry_run_engine
from mindbatch.loading.memory_check import MemoryDemand
from mindbatch.loading.providers import OpenedFolder
from mindbatch.loading.setup import EngineSetup
from mindbatch.parallel.topology import Topology
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.run.calibration import Calibration
from mindbatch.run.index import RowIndex
from mindbatch.run.plan import MOST_FAILURES, Plan, RankMemory, RowTotals, count_rows, time_after, time_at
from mindbatch.run.survey import RowCheck
from sizes import sizes
from stub_job import shared_tokenizer

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


def test_rows_are_counted_with_their_own_parameters(index: RowIndex) -> None:
    fill(index, ids(5), ids(8, max_new_tokens=3), ids(60), ids(2, do_sample=True, num_return_sequences=3))
    rows = counted(index, model())
    assert (rows.total, rows.usable, rows.unusable) == (4, 4, 0)
    assert rows.prompts.total == 5 + 8 + 60 + 2
    assert rows.outputs.total == 10 + 3 + 4 + 3 * 10  # the third ends at seq_length
    assert rows.outputs.count == 6
    assert rows.sequences.longest == 64


def test_rows_that_the_engine_would_refuse_are_named(index: RowIndex) -> None:
    unread = RowFailure("k0", "rows.jsonl", 1, "read", "not valid JSON")
    fill(index, unread, ids(64), {"content": {"token_ids": [340]}}, {"content": {"text": "a"}}, ids(3))
    rows = counted(index, model(num_blocks=3))
    assert (rows.total, rows.usable, rows.unusable) == (5, 1, 4)
    assert rows.failures[0] == unread
    assert [(failure.key, failure.line, failure.stage) for failure in rows.failures[1:]] == [
        ("k1", 2, "prompt"),
        ("k2", 3, "prompt"),
        ("k3", 4, "prompt"),
    ]
    assert rows.failures[1].reason.startswith("the prompt has 64 tokens")
    assert rows.failures[2].reason.startswith("token id 340 is outside")
    assert rows.failures[3].reason.startswith("the model's folder has no tokenizer")
    assert rows.prompts.total == 3


def test_checked_rows_do_not_pile_up(index: RowIndex) -> None:
    engine = dry_run_engine(model())
    fill(index, ids(5), ids(64), ids(6))
    count_rows(index, RowCheck(engine, None, GREEDY))
    assert not engine.has_work


def test_a_row_that_can_never_fit_the_cache_cannot_be_run(index: RowIndex) -> None:
    fill(index, ids(40), ids(3))
    rows = counted(index, model(num_blocks=3))
    assert [failure.key for failure in rows.failures] == ["k0"]
    assert "cache blocks" in rows.failures[0].reason


def test_only_the_first_failures_are_kept(index: RowIndex) -> None:
    fill(index, *[ids(64)] * (MOST_FAILURES + 3))
    rows = counted(index, model())
    assert rows.unusable == MOST_FAILURES + 3
    assert [failure.key for failure in rows.failures] == [f"k{place}" for place in range(MOST_FAILURES)]


def test_texts_and_chats_go_through_the_tokenizer(index: RowIndex) -> None:
    tokenizer = shared_tokenizer()
    chat = [{"role": "user", "content": "Hi"}]
    fill(index, {"content": {"text": "one, two"}}, {"content": {"messages": chat}})
    rows = counted(index, model(tokenizer=tokenizer))
    assert rows.prompts.total == len(tokenizer.encode("one, two")) + len(tokenizer.encode_chat(chat))


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
    measured = Calibration(seconds=4, generated=8, first_seconds=3, most_tokens=30, total_tokens=12)
    seen = time_after(measured, rows, startup_seconds=5.0)
    assert (seen.rate, seen.generated_tokens, seen.is_most, seen.measured) == (2, 40, False, True)
    assert (seen.startup_seconds, seen.compile_seconds, seen.seconds) == (5, 3, 5 + 3 + 20)
    unseen = time_after(replace(measured, most_tokens=0), rows, 0.0)
    assert (unseen.generated_tokens, unseen.is_most) == (100, True)
