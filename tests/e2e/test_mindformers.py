"""MindFormers' models from the command line: neither its messages nor its files are seen."""

from pathlib import Path

import pytest

from command_line import CommandLine
from small_qwen3 import write_small_qwen3


@pytest.mark.slow
def test_nothing_is_said_or_left_but_the_text(own_process: CommandLine, tmp_path: Path) -> None:
    model = write_small_qwen3(tmp_path / "qwen3")
    options = (f"model.checkpoint_name_or_path={model}", "prompts=Hello", "decoding.max_new_tokens=3")
    provider = ("model.provider=mindformers", "model.batch_size=2", "runtime.max_batched_tokens=4")
    done = own_process.run("generate", *options, *provider)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Hello")
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""
