"""`mindbatch reshard` with the shipped model: cut, cut again, merged, and the same texts come of it."""

import json
import signal
import subprocess
import sys

import pytest

from command_line import CommandLine, wait_until
from reshard_adapters import merged_at_once, write_adapter_for
from reshard_models import contents

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


def test_to_the_names_of_mindformers_and_back(command: CommandLine) -> None:
    there = ["reshard", SHIPPED, "target.dir=there", "target.names=mindformers", "target.format=ckpt"]
    named = command.run(*there, "target.model_parallel=2", leaves=["there"])
    assert named.returncode == 0, named.stderr
    assert named.stdout.startswith(f"{command.here}/there: written: 2 ranks, 52 tensors")
    leaves = ["there", "whole"]
    back = command.run("reshard", "source=there", "target.dir=whole", "verify=true", leaves=leaves)
    assert back.returncode == 0, back.stderr
    assert back.stderr == "mindbatch: there: the tensors have MindFormers' names\n"
    first = command.run("generate", "model=tiny_gpt2", PROMPT, leaves=leaves)
    assert generated(command, "whole", leaves) == first.stdout


def test_the_model_before_and_after_is_run(command: CommandLine) -> None:
    """Each in a process of its own."""
    rounded = ["reshard", SHIPPED, "target.dir=half", "target.dtype=bfloat16", "target.pipeline_stage=2"]
    done = command.run(*rounded, "target.model_parallel=2", "verify=logits", leaves=["half"])
    assert (done.returncode, done.stderr) == (0, "")
    assert ", first logits differ by up to 0." in done.stdout
    assert done.stdout.endswith("of 32 positions\n")


def test_what_cannot_be_gets_one_line(command: CommandLine) -> None:
    done = command.run("reshard", SHIPPED, "target.dir=cut", "target.model_parallel=3")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("mindbatch: target.model_parallel=3: ")
    assert done.stderr.count("\n") == 1
    done = command.run("reshard", "target.qkv_concat=true", "target.overflow=infinity")
    assert done.returncode == 2
    assert [line.split(":")[1].strip() for line in done.stderr.splitlines()] == [
        "source",
        "target.dir",
        "target.overflow=infinity",
        "target.qkv_concat=true",
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
    wait_until(lambda: part.exists() or process.poll() is not None, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    if process.returncode:  # else it was done already
        kept = f"mindbatch: {command.here}/cut.part: keeps what was finished; the same command goes on\n"
        assert (process.returncode, errors) == (130, f"{kept}mindbatch: interrupted\n")
        assert not (command.here / "cut").exists()
    done = command.run(*arguments, leaves=["cut"])
    assert done.returncode == 0, done.stderr


def test_an_adapter_is_merged_on_the_way(command: CommandLine) -> None:
    """Cut and merged at once is merged and then cut; what cannot be says why, on one line."""
    whole = command.here.parent / "whole"
    assert command.run("reshard", SHIPPED, f"target.dir={whole}").returncode == 0
    adapter = write_adapter_for(
        command.here.parent / "adapter", json.loads((whole / "config.json").read_bytes())
    )
    arguments = ["reshard", SHIPPED, f"lora.merge={adapter}", "target.dir=merged"]
    done = command.run(*arguments, "target.model_parallel=4", "workers=2", "verify=true", leaves=["merged"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("each element read back and compared\n")
    assert done.stderr == f"mindbatch: {adapter}: added to 12 weights, scaling 2\n"
    back = command.run("reshard", "source=merged", "target.dir=back", leaves=["back", "merged"])
    assert back.returncode == 0, back.stderr
    assert contents(command.here / "back") == [merged_at_once(contents(whole)[0], adapter)]
    twice = command.run(
        *arguments[:1], "source=back", *arguments[2:3], "target.dir=twice", leaves=["back", "merged"]
    )
    assert (twice.returncode, twice.stdout) == (2, "")
    assert "has this adapter merged already, with scaling 2" in twice.stderr
    assert twice.stderr.count("\n") == 1


def test_options_of_the_adapter_are_checked_first(command: CommandLine) -> None:
    done = command.run("reshard", SHIPPED, "target.dir=cut", "lora.merge=nowhere", "lora.scaling=0")
    assert done.returncode == 2
    assert [line.split(":")[1].strip() for line in done.stderr.splitlines()] == [
        "lora.merge=nowhere",
        "lora.scaling=0.0",
    ]
