"""Progress: the closing counts, and a moving line only where it disturbs nothing."""

import io
import re
import sys

import pytest

from mindbatch.engine.request import RequestOutput, StreamEvent
from mindbatch.tasks.generate.task import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def work(progress: Progress) -> None:
    with progress:
        progress.count(StreamEvent("0", 0, "", (1, 2)))
        progress.count(StreamEvent("1", 0, "", (3,)))
        progress.count(RequestOutput("0", None, []))


def test_the_closing_line_has_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    work(Progress(2, shown=True, output=io.StringIO()))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"1 prompt, 3 tokens in [\d.]+ s \([\d,]+ tokens/s\)\n", captured.err)


def test_silent_unless_shown_and_after_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    work(Progress(2, shown=False, output=io.StringIO()))

    def failing() -> None:
        with Progress(2, shown=True, output=io.StringIO()):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failing()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("output", "moves"), [(io.StringIO(), True), (Terminal(), False)])
def test_the_moving_line_needs_the_terminal_to_itself(
    output: io.StringIO, moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    progress = Progress(2, shown=True, output=output)
    assert progress._bar.disable is not moves
    work(progress)
