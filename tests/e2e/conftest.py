"""A command line to run and a model to run it with."""

from pathlib import Path

import pytest

from command_line import CommandLine
from small_gpt2 import write_small_gpt2


@pytest.fixture(scope="session")
def small_gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with random weights, a tokenizer and a chat template."""
    return write_small_gpt2(tmp_path_factory.mktemp("models") / "small gpt2")


@pytest.fixture
def command(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)
