"""Runs: the list of those below a folder with their states; one row of a run computed again and compared."""

import json
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
import pytest

from mindbatch.config.compose import compose_task
from mindbatch.io.errors import ConfigError, PromptError
from mindbatch.ledger.run_folder import RunLock
from mindbatch.run.batch_config import BatchConfig, ReplayConfig
from mindbatch.tasks.registry import TASKS
from mindbatch.tasks.replay import _with_one_replica
from mindbatch.tasks.replay import run as run_again
from mindbatch.tasks.runs.run_state import DEEPEST, find_runs, state_of
from mindbatch.tasks.runs.schema import RunsConfig
from mindbatch.tasks.runs.task import run
from shadow_llm import make_llm
from small_runs import make_run
from stub_job import FIELDS, job_config, make_job, shared_tokenizer

MANIFEST = {
    "status": "complete",
    "ended": "2026-01-02T04:00:00+00:00",
    "rows": {"total": 1200, "done": 1190, "failed": 10},
    "generated_tokens_per_second": 1234.56,
}
ENDED = 1767326400.0  # seconds since 1970 of the above
SAMPLE = {
    "time": ENDED - 5,
    "seconds": 20.0,
    "rows_total": 1200,
    "rows_done": 600,
    "rows_failed": 4,
    "generated_tokens": 5000,
}


def listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert run(RunsConfig(folder=str(folder), format="json")) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_a_complete_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "a", manifest=MANIFEST, samples=[SAMPLE], command=("mindbatch", "batch", "x=a b"))
    assert listed(tmp_path, capsys) == [
        {
            "folder": str(tmp_path / "a"),
            "status": "complete",
            "tokens_per_second": 1234.56,
            "created": "2026-01-02T03:04:05+00:00",
            "command": ["mindbatch", "batch", "x=a b"],
            "rows": {"total": 1200, "done": 1190, "failed": 10},
        }
    ]


def test_a_run_is_a_line_and_its_command_below(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("mindbatch", "batch", "data.path=[red]a b.jsonl", "x=\x1b[2J" + "y" * 90)
    make_run(tmp_path / "a", manifest=MANIFEST, command=command)
    make_run(tmp_path / "b")
    assert run(RunsConfig(folder=str(tmp_path))) == 0
    title, first, below, second, _ = capsys.readouterr().out.splitlines()
    assert title == "status       done  failed   rows  tokens/s  begun (UTC)       run"
    assert first == f"complete    1,190      10  1,200   1,234.6  2026-01-02 03:04  {tmp_path}/a"
    assert below == f"    mindbatch batch 'data.path=[red]a b.jsonl' 'x=\\x1b[2J{'y' * 90}'"
    assert second.split()[:5] == ["incomplete", "-", "-", "-", "-"]


def test_a_run_that_was_killed_is_known_by_its_last_sample(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", samples=[{"time": 0}, SAMPLE])
    with folder.metrics.open("ab") as file:
        file.write(b'{"time": 1, "rows_d')  # killed amid a line
    state = state_of(tmp_path / "a")
    assert (state.status, state.total, state.done, state.failed) == ("incomplete", 1200, 600, 4)
    assert state.tokens_per_second == 250.0


@pytest.mark.parametrize(
    ("manifest", "status", "done"),
    [
        ({"status": "interrupted"}, "interrupted", 1190),
        ({"status": "running", "ended": None}, "incomplete", 600),  # killed: its manifest is of its beginning
    ],
)
def test_a_run_that_has_not_ended(manifest: dict[str, Any], status: str, done: int, tmp_path: Path) -> None:
    make_run(tmp_path / "a", manifest={**MANIFEST, **manifest}, samples=[SAMPLE])
    state = state_of(tmp_path / "a")
    assert (state.status, state.done) == (status, done)


def test_a_run_that_is_running(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", manifest=MANIFEST, samples=[SAMPLE])
    with RunLock(folder):
        state = state_of(tmp_path / "a")
    assert (state.status, state.done, state.tokens_per_second) == ("running", 600, 250.0)
    assert state_of(tmp_path / "a").status == "complete"


def test_damage_is_shown_and_the_other_runs_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "a").run_file.write_text("{")
    make_run(tmp_path / "b", manifest=MANIFEST).manifest.write_text('{"rows": [], "status": 3')
    make_run(tmp_path / "c").manifest.write_text(
        '{"status": "complete", "rows": {"done": true, "total": "x"}}'
    )
    make_run(tmp_path / "d", samples=[]).metrics.write_text('[1]\n{"time": "x", "seconds": 0}\n')
    damaged, *others = listed(tmp_path, capsys)
    assert damaged["status"] == "damaged"
    assert "not valid JSON" in damaged["error"]
    assert [other["status"] for other in others] == ["incomplete", "complete", "incomplete"]
    assert all(other["rows"] == {"total": None, "done": None, "failed": None} for other in others)


def test_runs_are_found_below_and_not_in_runs_hidden_folders_or_links(tmp_path: Path) -> None:
    make_run(tmp_path / "x/y/a")
    make_run(tmp_path / "x/y/a/inner")
    make_run(tmp_path / "x/.hidden/b")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    deep = tmp_path.joinpath(*"d" * DEEPEST)
    make_run(deep)
    make_run(deep.parent / "e" / "too_deep")
    assert sorted(find_runs(tmp_path)) == sorted([tmp_path / "x/y/a", deep])
    assert list(find_runs(tmp_path / "x/y/a")) == [tmp_path / "x/y/a"]


def test_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(tmp_path, capsys) == []
    assert run(RunsConfig(folder=str(tmp_path))) == 0
    assert capsys.readouterr().out == f"{tmp_path}: no runs\n"


@pytest.fixture
def config(tmp_path: Path) -> BatchConfig:
    """A run of three rows: a good one, one that is too long, and one that cannot be read."""
    rows = [{"id": "a", "prompt": "why"}, {"id": "b", "prompt": "x" * 300}, {"id": "c", "prompt": 7}]
    data = tmp_path / "rows.jsonl"
    data.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    config = job_config(data, tmp_path / "run", key_column="id")
    make_job(config).run()
    return config


@pytest.mark.parametrize(
    ("task", "words", "keys"),
    [
        ("retry", ["run"], ["output.dir=run"]),
        ("replay", ["run", "key=a"], ["output.dir=run", "key=a"]),
        ("replay", ["run", "a"], ["output.dir=run", "key=a"]),
    ],
)
def test_a_run_is_given_as_a_word(
    task: str, words: list[str], keys: list[str], config: BatchConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `diff` and `runs` take it."""
    monkeypatch.chdir(Path(config.output.dir or "").parent)
    by_word, by_key = (compose_task(TASKS[task], arguments) for arguments in (words, keys))
    assert by_word.unresolved_yaml == by_key.unresolved_yaml
    assert not by_word.log.lines
    with pytest.raises(ConfigError, match="output.dir: given twice, as run and as output.dir="):
        compose_task(TASKS[task], ["run", "output.dir=run"])


def replay(config: BatchConfig, key: str, max_new_tokens: int = 4) -> int:
    asked = ReplayConfig(data=config.data, output=config.output, decoding=config.decoding, key=key)
    asked.decoding.max_new_tokens = max_new_tokens
    fields = {
        **FIELDS,
        "data.template": None,
        **{f"decoding.{name}": value for name, value in vars(asked.decoding).items()},
    }
    llm = make_llm(shared_tokenizer())
    with (
        mock.patch("mindbatch.llm.LLM.from_config", return_value=llm),
        mock.patch("mindbatch.tasks.replay.fingerprint_fields", return_value=fields),
    ):
        return run_again(asked)


def test_other_settings_are_told_and_compared(
    config: BatchConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(config, "a", max_new_tokens=6) == 1
    out = capsys.readouterr().out
    assert "other settings: decoding.max_new_tokens 4 -> 6" in out
    assert "changed: generation 0, first differing token 4" in out


def test_a_row_that_failed_fails_again(config: BatchConfig, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(config, "b") == 0
    assert "error: the prompt has 300 tokens" in capsys.readouterr().out


def test_rows_that_cannot_be_replayed(config: BatchConfig) -> None:
    with pytest.raises(PromptError, match=r"rows\.jsonl:3: .*7"):
        replay(config, "c")
    with pytest.raises(ConfigError, match="key=d: no row of .* has this key"):
        replay(config, "d")


@pytest.mark.parametrize(("worker_num", "replicas"), [(None, 1), (3, 3)])
def test_a_row_needs_one_replica_unless_the_processes_are_counted(
    worker_num: int | None, replicas: int
) -> None:
    asked = ReplayConfig()
    asked.parallel.data_parallel, asked.launch.worker_num = 3, worker_num
    assert _with_one_replica(asked).parallel.data_parallel == replicas
    assert asked.parallel.data_parallel == 3


def test_what_it_is_computed_with_is_told_where_it_differs(
    config: BatchConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(config, "a") == 0
    assert "computed with" not in capsys.readouterr().out
    with mock.patch("mindbatch.llm.LLM.kernels", "other"):
        assert replay(config, "a") == 0
    assert "\ncomputed with: kernels shadow -> other\n" in capsys.readouterr().out
