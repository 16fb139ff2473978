"""The plan task: its page and its JSON, and that it loads nothing that it does not need."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from bench.random_model import GPT2_124M, write_random
from mindbatch.config import machine
from mindbatch.config.compose import compose_task
from mindbatch.config.model_schema import DecodingConfig, ModelConfig, RuntimeConfig
from mindbatch.dataset.data_config import DataConfig
from mindbatch.dataset.rows import RowFailure
from mindbatch.io.amounts import duration, size
from mindbatch.io.errors import ConfigError
from mindbatch.llm import LLM
from mindbatch.loading.memory_check import MemoryDemand
from mindbatch.loading.setup import prepare
from mindbatch.parallel.topology import Topology
from mindbatch.run.batch_config import BatchOutputConfig, BatchTaskConfig
from mindbatch.run.calibration import Calibration
from mindbatch.run.plan import Plan, RankMemory, RowTotals
from mindbatch.tasks.batch import run as run_batch
from mindbatch.tasks.plan import batch
from mindbatch.tasks.plan import task as plan
from mindbatch.tasks.plan.batch import plan_page
from mindbatch.tasks.plan.schema import PlanConfig
from mindbatch.tasks.registry import TASKS
from small_runs import make_run

SHAPE = GPT2_124M | {"vocab_size": 97, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    write_random(folder, SHAPE)
    rows = [json.dumps({"prompt": [5] * length}) for length in (3, 9, 12)]
    (tmp_path / "rows.jsonl").write_text("\n".join([*rows, "{", '{"prompt": [97]}']))
    return folder


def config(folder: Path, **options: Any) -> PlanConfig:
    return PlanConfig(
        model=ModelConfig(checkpoint_name_or_path=str(folder)),
        data=DataConfig(path=str(folder.parent / "rows.jsonl")),
        decoding=DecodingConfig(max_new_tokens=10),
        **options,
    )


def test_chats_for_a_model_without_a_template_are_one_error(folder: Path) -> None:
    for options in ({"chat": True}, {"messages_column": "prompt"}):
        task = config(folder)
        task.data = DataConfig(path=str(folder.parent / "rows.jsonl"), **options)
        with pytest.raises(
            ConfigError, match="^data.(chat=true|messages_column=prompt): the model's folder has"
        ):
            plan.run(task)


CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
REQUEST = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": CHAT}


@pytest.mark.parametrize("row", [CHAT, REQUEST], ids=["columns", "requests"])
def test_rows_that_are_all_chats_are_one_error_without_a_template(row: dict[str, Any], folder: Path) -> None:
    """In a plan and in a run; beside a row that is none they are errors of their own."""
    path, home = folder.parent / "chats.jsonl", folder.parent / "run"
    path.write_text(json.dumps(row) + "\nno row\n")
    model, data = ModelConfig(checkpoint_name_or_path=str(folder)), DataConfig(path=str(path))
    task = replace(config(folder), data=data)
    job = BatchTaskConfig(model=model, data=data, output=BatchOutputConfig(dir=str(home)), progress="none")
    for run in (partial(plan.run, task), partial(run_batch, job)):
        with pytest.raises(
            ConfigError, match="^messages, which every row has: the model's folder has no tok"
        ):
            run()
    path.write_text(json.dumps(row) + "\n" + json.dumps(TEXT_OF[row is REQUEST]) + "\n")
    assert plan.run(task) == 0


TEXT_OF = {
    False: {"prompt": [5, 6]},
    True: {**REQUEST, "custom_id": "b", "url": "/v1/completions", "body": {"prompt": [5, 6]}},
}
"""Rows that are no chats, of columns and of requests."""


def planned(task: PlanConfig, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    task.report = "json"
    assert plan.run(task) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_page_names_what_cannot_be_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.run(config(folder, rate=3.0)) == 0
    page = capsys.readouterr().out
    assert "rows       5; 2 cannot be run" in page
    assert "rows.jsonl:4: not valid JSON" in page
    assert "rows.jsonl:5: token id 97 is outside the vocabulary" in page
    assert "prompts    24 tokens: 8.0 on average, median 9, 95% up to 12, longest 12" in page
    assert "outputs    at most 30 tokens in 3 sequences" in page
    assert "at most 10 s: 30 tokens to generate at 3.0 tokens/s (given)" in page


def test_adapters_are_found_as_by_a_batch(folder: Path) -> None:
    """And so are their faults."""
    words = [f"model.checkpoint_name_or_path={folder}", f"data.path={folder.parent / 'rows.jsonl'}"]
    words += ["output.dir=runs/a", "lora.adapters={a: nowhere, tiny: 'shipped:examples/tiny_gpt2'}"]
    with pytest.raises(ConfigError) as caught:
        compose_task(TASKS["plan"], words).finish()
    assert caught.value.lines == ("lora.adapters.a=nowhere: no such folder",)


def test_without_a_rate_no_time_is_guessed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(config(folder), capsys)["time"] is None
    plan.run(config(folder))
    assert "not estimated; give rate=TOKENS_PER_SECOND or calibrate=true" in capsys.readouterr().out


def test_a_page_of_bad_rows_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder.parent / "rows.jsonl").write_text('{"prompt": [97]}\n' * 9)
    plan.run(config(folder, rate=3.0))
    page = capsys.readouterr().out
    assert "rows       9; 9 cannot be run" in page
    assert "and 4 more" in page
    assert "prompts    none" in page
    assert "fits" not in page


def test_text_of_the_data_cannot_act_on_the_terminal(folder: Path) -> None:
    task = config(folder)
    rows = RowTotals(1, 1, [RowFailure("k", "a\x1b[2J.jsonl", 1, "prompt", "refused: \x1b[1m")])
    setup = prepare(task.model, task.runtime)
    ranks = RankMemory(Topology(), partial(MemoryDemand.of, setup))
    page = plan_page(Plan(rows, setup, ranks, None, ("\x1b[3m",)))
    assert "\x1b" not in page
    assert "a\\x1b[2J.jsonl:1: refused: \\x1b[1m" in page


def test_a_cache_too_small_for_the_batch_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = config(folder)
    task.model.batch_size = 64
    task.runtime = RuntimeConfig(cache_memory="256KiB")
    found = planned(task, capsys)
    assert found["sequences_that_fit"]["typical"]["sequences"] < 64
    (note,) = found["notes"]
    assert note.startswith("model.batch_size=64 cannot be reached")
    memory = note.partition("runtime.cache_memory=")[2].partition(" ")[0]
    task.runtime.cache_memory = memory
    found = planned(task, capsys)
    assert found["sequences_that_fit"]["typical"]["sequences"] >= 64
    assert found["notes"] == []


def test_what_a_run_would_be_refused_for_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its own words; what is there but not free may still be had."""
    there = {"total": 1 << 30, "available": 500 << 20}
    monkeypatch.setattr(machine, "memory", lambda: there)
    (note,) = planned(config(folder), capsys)["notes"]
    with pytest.raises(ConfigError) as caught:
        LLM(str(folder), batch_size=32)
    assert [note] == [*caught.value.lines]
    assert note.startswith("memory: the model needs 1.0 GiB, 119.6 KiB of weights in float32 and 1.0 GiB of ")
    there["total"] = 1 << 40
    (note,) = planned(config(folder), capsys)["notes"]
    assert note == (
        "memory: 119.6 KiB of weights in float32 and 1.0 GiB of runtime.cache_memory take 1.0 GiB, and "
        "500.0 MiB of memory are free here; try: runtime.cache_memory of at most 499MiB, or more "
        "of parallel.model_parallel or parallel.pipeline_stage over more machines"
    )


def test_a_run_that_is_there_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = folder.parent / "runs"
    rows = {"total": 5, "done": 3, "failed": 2}
    make_run(runs, manifest={"status": "complete", "ended": "2026-01-02T04:00:00+00:00", "rows": rows})
    (note,) = planned(config(folder, output=BatchOutputConfig(dir=str(runs))), capsys)["notes"]
    assert "holds a run: 3 of 5 rows are done" in note


def test_calibrating_takes_the_rate_of_the_rows(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def calibrate(
        llm: str, rows: list[Any], params: Any, check: Any, max_batched_tokens: int, date: str | None
    ) -> Calibration:
        seen.extend([llm, *(row.line for row in rows)])
        return Calibration(seconds=0.5, generated=4, max_tokens=10, total_tokens=4)

    monkeypatch.setattr(batch, "calibrate", calibrate)
    monkeypatch.setattr(LLM, "from_config", lambda config: "the model")
    time = planned(config(folder, calibrate=True), capsys)["time"]
    assert seen == ["the model", mock.ANY]  # one row
    assert (time["generated_tokens"], time["measured"]) == (12, True)
    assert time["seconds"] > time["startup_seconds"] > 0


@pytest.mark.slow
def test_no_heavy_library_is_loaded_and_nothing_is_left(folder: Path) -> None:
    code = (
        "import sys; from mindbatch.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "print(code, [name for name in ('mindspore', 'mindformers', 'torch') if name in sys.modules])"
    )
    arguments = [f"model.checkpoint_name_or_path={folder}", "data.path=-", "report=json"]
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder.parent,
        input=(folder.parent / "rows.jsonl").read_text(),
    )
    *report, last = done.stdout.splitlines()
    assert last == "0 []", done.stderr
    assert json.loads("\n".join(report))["rows"]["usable"] == 3
    assert sorted(entry.name for entry in folder.parent.iterdir()) == ["model", "rows.jsonl"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        ((1 << 30) - 1, "1.0 GiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_sizes_are_readable(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0143, "0.014 s"),
        (9.96, "10.0 s"),
        (35.2, "35 s"),
        (119, "119 s"),
        (600, "10 min"),
        (7199, "120 min"),
        (9000, "2 h 30 min"),
    ],
)
def test_durations_are_readable(seconds: float, text: str) -> None:
    assert duration(seconds) == text
