"""Following runs from another process: what their files say, when lines are shown, and when it ends."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from mindbatch.cli import main
from mindbatch.ledger.run_folder import RunFolder, RunLock
from mindbatch.tasks.runs import watch
from mindbatch.tasks.runs.watch import watch_runs
from small_runs import make_run

LATER = 4e9
"""Seconds since 1970, after the lock of any test."""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Time that only sleeping lets pass; `actions` happen when it has come to their seconds."""

    def __init__(self, actions: dict[float, Callable[[], object]]) -> None:
        self.now = 0.0
        self._actions = actions

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for moment in sorted(self._actions):
            if moment <= self.now:
                self._actions.pop(moment)()


def sample(seconds: float, done: int, tokens: int, **more: float) -> dict[str, Any]:
    counts = {"rows_total": 100, "rows_done": done, "rows_failed": 2, "generated_tokens": tokens}
    return {"time": LATER + seconds, "seconds": seconds, **counts, **more}


def add_sample(folder: RunFolder, *samples: dict[str, Any]) -> None:
    with folder.metrics.open("ab") as file:
        file.writelines(orjson.dumps(content) + b"\n" for content in samples)


def followed(top: Path, clock: Clock, file: io.StringIO | None = None) -> tuple[list[Path], list[str]]:
    file = file or io.StringIO()
    folders = watch_runs(top, file, lambda: clock.now, clock.sleep)
    return folders, file.getvalue().splitlines()


def test_a_line_when_something_changed_and_half_a_minute_passed(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    lock = RunLock(folder)
    clock = Clock(
        {
            1: lambda: add_sample(folder, sample(0, 0, 0), sample(5, 8, 600)),
            35: lambda: add_sample(folder, sample(40, 48, 7200)),
            45: lambda: add_sample(folder, sample(50, 58, 8200)),
            61: lambda: add_sample(folder, sample(66, 74, 9200)),
            70: lock.close,
        }
    )
    folders, lines = followed(tmp_path, clock)
    assert folders == [tmp_path / "a"]
    assert lines == [
        f"{tmp_path}/a: reading the data",
        f"{tmp_path}/a: 10 of 100 rows, 2 failed, 0:56 left, 1.6 rows/s, 120 tokens/s",
        f"{tmp_path}/a: 60 of 100 rows, 2 failed, 0:34 left, 1.2 rows/s, 100 tokens/s",
    ]


def test_samples_of_an_earlier_session_say_nothing_of_this_one(tmp_path: Path) -> None:
    rows = {"rows": {"total": 100, "done": 40, "failed": 3}}
    folder = make_run(tmp_path / "a", manifest=rows, samples=[{**sample(900, 90, 9e9), "time": 1e9}])
    lock = RunLock(folder)
    clock = Clock({31: lambda: add_sample(folder, sample(0, 45, 0), sample(10, 55, 500)), 40: lock.close})
    _, lines = followed(tmp_path, clock)
    assert [line.partition(": ")[2] for line in lines] == [
        "43 of 100 rows, 3 failed",
        "57 of 100 rows, 2 failed, 0:43 left, 1.0 rows/s, 50 tokens/s",
    ]


def test_a_run_that_begins_later_is_followed_too_and_the_end_is_that_of_the_last(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    locks = [RunLock(first)]
    actions: dict[float, Callable[[], object]] = {
        5: lambda: locks.append(RunLock(second)),
        20: lambda: locks[0].close(),
        40: lambda: locks[1].close(),
    }
    clock = Clock(actions)
    folders, lines = followed(tmp_path, clock)
    assert folders == [tmp_path / "a", tmp_path / "b"]
    assert clock.now == 39 + watch.NEXT_SECONDS
    assert len(lines) == 2


def test_a_job_of_a_sweep_that_begins_when_another_has_ended_is_followed(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    lock = RunLock(first)
    locks: list[RunLock] = []

    clock = Clock({3: lock.close, 9: lambda: locks.append(RunLock(second)), 13: lambda: locks[0].close()})
    assert followed(tmp_path, clock)[0] == [tmp_path / "a", tmp_path / "b"]


def test_after_a_run_that_is_named_itself_nothing_is_waited_for(tmp_path: Path) -> None:
    lock = RunLock(make_run(tmp_path / "a"))
    clock = Clock({3: lock.close})
    assert followed(tmp_path / "a", clock)[0] == [tmp_path / "a"]
    assert clock.now == 3


def test_a_run_without_news_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", samples=[sample(0, 0, 0), sample(5, 8, 600)])
    lock = RunLock(folder)
    _, lines = followed(tmp_path, Clock({100: lock.close}))
    assert "0:56 left" in lines[0]
    assert "2 failed, no news for 60 s, 1.6 rows/s" in lines[1]


def test_on_a_terminal_the_lines_move_and_are_gone_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    folder = make_run(tmp_path / "a[red]", samples=[sample(0, 0, 0), sample(5, 8, 600)])
    lock, terminal = RunLock(folder), Terminal()
    _, shown = followed(tmp_path, Clock({3: lock.close}), terminal)
    assert "a[red]" in shown[0]
    assert "10 of 100 rows, 2 failed, 0:56 left" in shown[0]
    assert "1.6 rows/s, 120 tokens/s" in shown[1]
    assert terminal.getvalue().endswith("\x1b[2K")


def test_following_writes_nothing_and_leaves_the_lock_to_the_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", samples=[sample(0, 0, 0)])
    with RunLock(folder):
        before = {path: path.read_bytes() for path in sorted(folder.path.iterdir())}
    lock = RunLock(folder)
    held = folder.lock.read_bytes()
    followed(tmp_path, Clock({3: lock.close}))
    assert {path: path.read_bytes() for path in sorted(folder.path.iterdir())} == {
        **before,
        folder.lock: held,
    }
    RunLock(folder).close()


def test_the_flag_is_the_key_and_both_end_with_the_states(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = {"status": "complete", "rows": {"total": 1, "done": 1, "failed": 0}}
    folder = make_run(tmp_path / "a", manifest=manifest)
    for word in ("--watch", "watch=true"):
        lock = RunLock(folder)
        monkeypatch.setattr(watch, "LOOK_SECONDS", 0)
        monkeypatch.setattr(watch, "NEXT_SECONDS", 0)
        monkeypatch.setattr(watch, "session_samples", lambda folder: lock.close() or [])  # noqa: B023
        assert main(["runs", str(tmp_path), word]) == 0
        first, _, state, _ = capsys.readouterr().out.splitlines()
        assert first == f"{tmp_path}/a: 1 of 1 rows, 0 failed"
        assert state.startswith("complete")


def test_nothing_to_follow_and_json_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "a")
    assert main(["runs", str(tmp_path), "--watch"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}: no run is running\n"
    assert main(["runs", str(tmp_path), "--watch", "format=json"]) == 2
    assert "watch=true: has no effect with format=json" in capsys.readouterr().err


def test_other_tasks_have_no_such_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "a", "b", "--watch"]) == 2
    assert capsys.readouterr().err == (
        "mindbatch: --watch: mindbatch diff has no such flag; mindbatch runs has it\n"
    )
    for task in ("diff", "runs"):
        assert main([task, "--help"]) == 0
        assert ("--watch  " in capsys.readouterr().out) == (task == "runs")


def test_ctrl_c_ends_with_its_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watch, "watch_runs", lambda top: watch_runs(top, sleep=interrupt))
    with RunLock(make_run(tmp_path / "a")):
        assert main(["runs", str(tmp_path), "--watch"]) == 130
    assert capsys.readouterr().err == "mindbatch: interrupted\n"
