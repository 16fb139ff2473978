"""Progress of a run: plain lines by the clock, a bar on a terminal only, and what was done at the end."""

import io
import re

import pytest

from mindbatch.run.metrics import Snapshot
from mindbatch.run.progress import RunProgress, clock, closing_line, seconds_left

LAST = "9 rows run in 100 s; 400 prompt tokens (25% found in the cache), 900 generated (9 tokens/s)\n"


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
    with RunProgress(kind, file) as progress:
        for snapshot in snapshots:
            progress.update(snapshot)
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


def test_none_is_silent() -> None:
    assert shown("none", RUN) == ""


def test_nothing_is_said_of_a_run_that_never_began() -> None:
    assert shown("plain", []) == ""


def test_an_interrupted_run_says_what_it_has_done() -> None:
    file = io.StringIO()

    def interrupted() -> None:
        with RunProgress("plain", file) as progress:
            for snapshot in RUN:
                progress.update(snapshot)
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
    progress = RunProgress(kind, file)
    for snapshot in RUN:
        progress.update(snapshot)
    progress._bar.refresh()
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).replace("\r", "")
    progress.close()
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
    line = closing_line(at(0.0), at(2.0, 3, 1, 90))
    assert line.startswith("4 rows run in 2.0 s; 40 prompt tokens (25% found in the cache), 90 generated")
    assert closing_line(at(1.0), at(1.0)).startswith("0 rows run in ")
