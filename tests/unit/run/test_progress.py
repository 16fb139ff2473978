"""Progress of a run: lines by the clock, a bar on a terminal only, samples in the metrics file."""

import errno
import io
import itertools
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mindbatch.engine.progress import RunItem, with_progress
from mindbatch.engine.request import RequestOutput, StreamEvent
from mindbatch.io.moving_bar import CLEARED, LoadingLine, MovingBar
from mindbatch.io.storage import Storage
from mindbatch.run.metrics import SAMPLES_PER_WINDOW, MetricsLog, RateMeter, Rates, Snapshot, rates_between
from mindbatch.run.progress import clock, closing_line, reading_line, run_progress, seconds_left

LAST = "8 rows run in 100 s; 400 prompt tokens (25% found in the cache), 900 generated (9 tokens/s)\n"


@pytest.fixture(autouse=True)
def _capable_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever terminal the tests are started in."""
    monkeypatch.setenv("TERM", "xterm")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at(seconds: float, done: int = 0, failed: int = 0, tokens: int = 0) -> Snapshot:
    return Snapshot(
        seconds=seconds,
        rows_total=20,
        rows_done=done,
        rows_failed=failed,
        prompt_tokens=tokens * 4 // 9,
        cached_prompt_tokens=tokens // 9,
        generated_tokens=tokens,
        running=8,
        waiting=3,
        cache_used=0.425,
    )


def shown(kind: str, snapshots: list[Snapshot], file: io.StringIO | None = None) -> str:
    file = file or io.StringIO()
    with run_progress(kind, file) as update:
        for snapshot in snapshots:
            update(snapshot)
    return file.getvalue()


# Two rows were done before; one ends every ten seconds, and nine tokens a second are generated.
RUN = [at(float(s), 2 + min(s // 10, 8), s // 90, 9 * s) for s in range(101)]


def test_a_plain_line_every_thirty_seconds() -> None:
    lines = shown("plain", RUN).splitlines(keepends=True)
    assert len(lines) == 4
    assert lines[1] == (
        "8 of 20 rows done, 0 failed, prompt 4 tokens/s, generated 9 tokens/s, 8 running, 3 waiting, "
        "cache 42%, prefix hits 25%, 2:00 left\n"
    )
    assert lines[3] == LAST


def test_nothing_is_said_where_none_is_wanted_or_the_run_never_began() -> None:
    assert (shown("none", RUN), shown("plain", [])) == ("", "")


def test_an_interrupted_run_says_what_it_has_done() -> None:
    file = io.StringIO()

    def interrupted() -> None:
        with run_progress("plain", file) as update:
            for snapshot in RUN:
                update(snapshot)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert file.getvalue().endswith(LAST)


def test_auto_is_plain_without_a_terminal_and_on_a_dumb_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert shown("auto", RUN) == shown("plain", RUN)
    monkeypatch.setenv("TERM", "dumb")
    assert shown("auto", RUN, Terminal()) == shown("plain", RUN)


@pytest.mark.parametrize(("kind", "file"), [("auto", Terminal()), ("rich", io.StringIO())])
def test_a_bar_with_everything_on_a_terminal(
    kind: str, file: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    shown(kind, RUN, file)
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).replace("\r", "")
    assert re.search(r"11/20 in \d:\d\d:\d\d 1 failed, 1:40 left", drawn)
    assert (
        "prompt 4 tokens/s, generated 9 tokens/s, 8 running, 3 waiting, cache 42%, prefix hits 25%" in drawn
    )
    left = file.getvalue()
    assert left.endswith(LAST)
    assert left.count("\x1b[?25l") == left.count("\x1b[?25h") == 1  # the cursor is there again


def test_the_time_left_is_unknown_until_a_row_has_ended() -> None:
    assert seconds_left(at(10.0), 0.0) is None
    assert seconds_left(at(10.0, 10), 0.5) == 20.0
    assert seconds_left(at(10.0, 18, 2), 0.0) == 0.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0:00"),
        (59.6, "1:00"),
        (754.0, "12:34"),
        (3600.0, "1:00:00"),
        (360_061.0, "100:01:01"),
    ],
)
def test_the_clock(seconds: float | None, text: str) -> None:
    assert clock(seconds) == text


def test_the_closing_line_is_about_the_session_alone() -> None:
    """A row that failed, as one that is too long, is none that was run."""
    line = closing_line(at(0.0), at(2.0, 3, 1, 90))
    assert line.startswith("3 rows run in 2.0 s; 40 prompt tokens (25% found in the cache), 90 generated")
    assert closing_line(at(1.0), at(1.0)).startswith("0 rows run in ")


ITEMS = [StreamEvent("0", 0, "", (1, 2)), StreamEvent("1", 0, "", (3,)), RequestOutput("0", None, [])]


def work(*, shown: bool = True, alone: bool = True) -> None:
    assert list(with_progress(ITEMS, 2, shown=shown, alone=alone)) == ITEMS


def test_the_closing_line_has_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    work()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"1 prompt, 3 tokens in [\d.]+ s \([\d,]+ tokens/s\)\n", captured.err)


def test_silent_unless_shown_and_after_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    work(shown=False)

    def failing() -> Iterator[RunItem]:
        yield ITEMS[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(with_progress(failing(), 2, shown=True, alone=True))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("alone", [True, False])
def test_the_moving_line_needs_the_terminal_to_itself(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    work(alone=alone)
    assert ("generating" in terminal.getvalue()) is alone


def counted(seconds: float, tokens: int = 0, **counts: int) -> Snapshot:
    return Snapshot(seconds=seconds, rows_total=50, generated_tokens=tokens, **counts)


def sampled(seconds: float) -> Snapshot:
    return counted(seconds, int(9 * seconds), rows_done=int(seconds), rows_failed=1)


def log(path: Path, *seconds: float) -> None:
    with MetricsLog(path, clock=lambda: 1700000000.25) as metrics:
        for second in seconds:
            metrics.sample(sampled(second))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(("ticks", "last"), [(48, [11.75]), (41, [])], ids=["between", "on a sample"])
def test_a_sample_when_five_seconds_have_passed_and_one_at_the_end(
    ticks: int, last: list[float], tmp_path: Path
) -> None:
    log(tmp_path / "metrics.jsonl", *(tick / 4 for tick in range(ticks)))
    assert [line["seconds"] for line in lines(tmp_path / "metrics.jsonl")] == [0.0, 5.0, 10.0, *last]


def test_a_line_has_the_counts_the_time_and_the_rates_since_the_line_before(tmp_path: Path) -> None:
    log(tmp_path / "metrics.jsonl", 0.0, 2.0, 10.0)
    assert lines(tmp_path / "metrics.jsonl")[1] == {
        "time": 1700000000.25,
        "seconds": 10.0,
        "rows_total": 50,
        "rows_done": 10,
        "rows_failed": 1,
        "prompt_tokens": 0,
        "cached_prompt_tokens": 0,
        "generated_tokens": 90,
        "running": 0,
        "waiting": 0,
        "cache_used": 0.0,
        "preemptions": 0,
        "prompt_tokens_per_second": 0.0,
        "generated_tokens_per_second": 9.0,
        "rows_per_second": 1.0,
    }


def test_a_resumed_run_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log(path, 0.0)
    path.write_bytes(path.read_bytes() + b'{"time":17')
    log(path, 0.0, 5.0)
    log(path, 0.0)
    whole = path.read_text().splitlines()
    assert whole.pop(1) == '{"time":17'
    assert [json.loads(line)["seconds"] for line in whole] == [0.0, 0.0, 5.0, 0.0]


def test_a_run_without_samples_writes_nothing(tmp_path: Path) -> None:
    log(tmp_path / "metrics.jsonl")
    assert os.listdir(tmp_path) == []
    log(tmp_path / "metrics.jsonl", 0.0)
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_a_full_disk_is_said_once_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, tries = tmp_path / "metrics.jsonl", []

    def full(self: Storage, file: int, data: bytes) -> None:
        tries.append(data)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Storage, "write", full)
    log(path, 0.0, 5.0, 10.0)
    assert len(tries) == 1
    assert capsys.readouterr().err == (
        f"mindbatch: {path}: no more metrics are written (No space left on device)\n"
    )


def test_a_folder_that_is_not_there_is_said_and_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log(tmp_path / "gone/metrics.jsonl", 0.0, 5.0)
    assert capsys.readouterr().err.count("\n") == 1


def test_rates_forget_what_is_older_than_the_window() -> None:
    meter = RateMeter(window=10.0)
    for second in range(101):
        tokens = second if second <= 50 else 50 + 100 * (second - 50)
        found = meter.rates(counted(float(second), tokens))
    assert found.generated_tokens == pytest.approx(100.0)
    assert meter.rates(counted(200.0, tokens)).generated_tokens == 0.0


def test_any_number_of_snapshots_leaves_few_samples() -> None:
    meter = RateMeter(window=10.0)
    for step in range(20_000):
        found = meter.rates(counted(step / 500, step * 3))
    assert found.generated_tokens == pytest.approx(1500.0)
    assert len(meter._samples) <= SAMPLES_PER_WINDOW + 3


def test_no_time_is_no_rate() -> None:
    assert rates_between(counted(1.0), counted(1.0, 50)) == Rates()


@pytest.mark.parametrize(
    ("kind", "file", "seconds", "expected"),
    [
        (
            "auto",
            Terminal(),
            31,
            "\r\x1b[K4,096 rows read, 1 error" + "\r\x1b[K8,192 rows read, 2 errors" + "\r\x1b[K",
        ),
        ("auto", io.StringIO(), 31, "4,096 rows read, 1 error\n8,192 rows read, 2 errors\n"),
        ("plain", Terminal(), 31, "4,096 rows read, 1 error\n8,192 rows read, 2 errors\n"),
        ("none", Terminal(), 31, ""),
        ("auto", Terminal(), 0, ""),
    ],
    ids=["moving", "no terminal", "plain", "none", "a moment"],
)
def test_reading_that_takes_long_is_shown(kind: str, file: io.StringIO, seconds: int, expected: str) -> None:
    ticks = itertools.count(0, seconds)
    with reading_line(kind, file, clock=lambda: next(ticks)) as on_row:
        for rows in range(1, 9000):
            on_row(rows, rows // 4096)
    assert file.getvalue() == expected


@pytest.mark.parametrize(("at_terminal", "shown"), [(True, True), (False, True), (True, False)])
def test_each_text_takes_the_place_of_the_last_and_nothing_stays(
    at_terminal: bool, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.StringIO()
    monkeypatch.setattr(file, "isatty", lambda: at_terminal, raising=False)
    with LoadingLine(shown=shown, file=file) as line:
        line("loading weights 50%")
        line("compiling graph for 8 tokens")
        for item in line.until_first(["a", "b"]):
            line(f"after {item}")
    parts = [CLEARED + "loading weights 50%", CLEARED + "compiling graph for 8 tokens", CLEARED]
    assert file.getvalue() == ("".join(parts) if at_terminal and shown else "")


class _Handle:
    """Stands in for IPython's, which draws over an output of a cell."""

    def __init__(self) -> None:
        self.drawn: list[str] = []

    def draw(self, frame: Any, display_id: bool = False) -> "_Handle":
        html = frame._repr_mimebundle_(include=(), exclude=())["text/html"]
        self.drawn.append(re.sub("<[^>]*>", "", html))
        return self

    update = draw


def test_in_a_notebook_one_output_is_drawn_over_at_most_five_times_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("IPython", reason="IPython is not installed: pip install -e '.[test]'")
    handle, now = _Handle(), [100.0]
    monkeypatch.setattr("IPython.display.display", handle.draw)
    monkeypatch.setattr("mindbatch.io.moving_bar.time.monotonic", lambda: now[0])
    file = io.StringIO()
    with MovingBar("batch", Console(file=file, force_jupyter=True)) as bar:
        for row in range(1, 1001):
            now[0] += 0.001
            bar.set(row, 1000, "rows", "below [red]")
    assert 5 <= len(handle.drawn) <= 8
    assert "1000/1000" in handle.drawn[-1]
    assert "below [red]" in handle.drawn[-1]
    assert file.getvalue() == ""
    with MovingBar("batch", Console(file=file, force_jupyter=True), disable=True) as bar:
        bar.set(1, 2, "rows")
    assert "1000/1000" in handle.drawn[-1]


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(
    term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Emacs has one, and the cells of a notebook that run a command."""
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert shown("auto", RUN, Terminal()) == shown("plain", RUN)
    terminal = Terminal()
    with LoadingLine(file=terminal) as line:
        line("loading")
    assert terminal.getvalue() == ""


def test_colours_wanted_everywhere_make_no_terminal_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert shown("auto", RUN) == shown("plain", RUN)
