"""`mindbatch reshard` with the shipped model: cut, cut again, merged, and the same texts come of it."""

import json
import signal
import subprocess
import sys

import pytest

from command_line import CommandLine

pytestmark = pytest.mark.slow

PROMPT = 'prompts=["An increasing sequence: one,"]'
SHIPPED = "source=shipped:examples/tiny_gpt2"


def generated(command: CommandLine, folder: str, leaves: list[str]) -> str:
    done = command.run("generate", f"model.checkpoint_name_or_path={folder}", PROMPT, leaves=leaves)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_and_back(command: CommandLine) -> None:
    cut = command.run(
        "reshard",
        SHIPPED,
        "target.dir=cut",
        "target.model_parallel=4",
        "workers=2",
        "verify=true",
        leaves=["cut"],
    )
    assert cut.returncode == 0, cut.stderr
    assert cut.stdout.startswith(f"{command.here}/cut: written: 4 ranks, 40 tensors")
    assert cut.stdout.endswith("each element read back and compared\n")
    assert cut.stderr == ""
    ckpt = ["reshard", "source=cut", "target.dir=ckpt", "target.model_parallel=2", "target.format=ckpt"]
    assert command.run(*ckpt, leaves=["ckpt", "cut"]).returncode == 0
    merged = command.run("reshard", "source=ckpt", "target.dir=whole", leaves=["ckpt", "cut", "whole"])
    assert merged.returncode == 0, merged.stderr
    leaves = ["ckpt", "cut", "whole"]
    first = command.run("generate", "model=tiny_gpt2", PROMPT, leaves=leaves)
    assert generated(command, "whole", leaves) == first.stdout
    marker = json.loads((command.here / "whole/reshard.json").read_bytes())
    assert marker["settings"]["model_parallel"] == 1


def test_what_cannot_be_gets_one_line(command: CommandLine) -> None:
    done = command.run("reshard", SHIPPED, "target.dir=cut", "target.model_parallel=3")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("mindbatch: target.model_parallel=3: ")
    assert done.stderr.count("\n") == 1
    done = command.run("reshard", "target.names=mindformers", "target.overflow=infinity")
    assert done.returncode == 2
    assert [line.split(":")[1].strip() for line in done.stderr.splitlines()] == [
        "source",
        "target.dir",
        "target.names=mindformers",
        "target.overflow=infinity",
    ]


def test_an_interrupt_ends_all_processes_and_the_same_command_goes_on(command: CommandLine) -> None:
    arguments = ["reshard", SHIPPED, "target.dir=cut", "target.model_parallel=4", "workers=2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "mindbatch", *arguments],
        cwd=command.here,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    part = command.here / "cut.part/reshard.journal"
    while not part.exists() and process.poll() is None:
        pass
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    if process.returncode:  # else it was done already
        assert (process.returncode, errors) == (130, "mindbatch: interrupted\n")
        assert not (command.here / "cut").exists()
    done = command.run(*arguments, leaves=["cut"])
    assert done.returncode == 0, done.stderr
