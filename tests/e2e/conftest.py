"""Command lines to run and a model to run them with."""

from pathlib import Path

import pytest

from called_command_line import CalledCommandLine
from command_line import CommandLine
from small_gpt2 import write_small_gpt2


@pytest.fixture(scope="session")
def small_gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with random weights, a tokenizer and a chat template."""
    return write_small_gpt2(tmp_path_factory.mktemp("models") / "small gpt2")


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> CommandLine:
    """The command within this process: for what does not depend on whose process it is."""
    return CalledCommandLine(tmp_path, monkeypatch, capfd)


@pytest.fixture
def own_process(tmp_path: Path) -> CommandLine:
    """The command in a process of its own, as a user starts it."""
    return CommandLine(tmp_path)
