"""Progress: the closing counts, and a moving line only where it disturbs nothing."""

import io
import re
import sys

import pytest

from mindbatch.engine.request import RequestOutput, StreamEvent
from mindbatch.generation_progress import GenerationProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def work(progress: GenerationProgress) -> None:
    with progress:
        progress.count(StreamEvent("0", 0, "", (1, 2)))
        progress.count(StreamEvent("1", 0, "", (3,)))
        progress.count(RequestOutput("0", None, []))


def test_the_closing_line_has_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    work(GenerationProgress(2, shown=True, alone=True))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"1 prompt, 3 tokens in [\d.]+ s \([\d,]+ tokens/s\)\n", captured.err)


def test_silent_unless_shown_and_after_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    work(GenerationProgress(2, shown=False, alone=True))

    def failing() -> None:
        with GenerationProgress(2, shown=True, alone=True):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failing()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("alone", [True, False])
def test_the_moving_line_needs_the_terminal_to_itself(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    progress = GenerationProgress(2, shown=True, alone=alone)
    assert progress._bar.disable is not alone
    work(progress)
