"""The list of runs: found below a folder, with a state that is read off what they left."""

import json
from pathlib import Path
from typing import Any

import pytest

from mindbatch.ledger.run_folder import RunLock
from mindbatch.tasks.runs import DEEPEST, RunsConfig, find_runs, run, state_of
from small_runs import make_run

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


def test_an_interrupted_run(tmp_path: Path) -> None:
    make_run(tmp_path / "a", manifest={**MANIFEST, "status": "interrupted"})
    state = state_of(tmp_path / "a")
    assert (state.status, state.done) == ("interrupted", 1190)


def test_a_run_that_was_killed_is_known_by_its_last_sample(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", samples=[{"time": 0}, SAMPLE])
    with folder.metrics.open("ab") as file:
        file.write(b'{"time": 1, "rows_d')  # killed amid a line
    state = state_of(tmp_path / "a")
    assert (state.status, state.total, state.done, state.failed) == ("incomplete", 1200, 600, 4)
    assert state.tokens_per_second == 250.0


def test_a_session_that_was_killed_left_its_manifest_at_its_beginning(tmp_path: Path) -> None:
    beginning = {**MANIFEST, "status": "running", "ended": None}
    make_run(tmp_path / "a", manifest=beginning, samples=[SAMPLE])
    state = state_of(tmp_path / "a")
    assert (state.status, state.done) == ("incomplete", 600)


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
    assert "not valid JSON" in damaged["fault"]
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
