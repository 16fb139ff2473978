"""SIGINT and SIGTERM while a process starts and loads: one line and the exit code, never a crash."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command_line import CommandLine, wait_until

ANSWERS = {
    signal.SIGINT: (130, b"mindbatch: interrupted\n"),
    signal.SIGTERM: (143, b"mindbatch: terminated\n"),
}


def started(command: CommandLine, *overrides: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "mindbatch", "generate", "model=tiny_gpt2", "prompts=hello", *overrides],
        cwd=command.here,
        env={"PATH": os.environ["PATH"], "HOME": str(command.home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Tests that run in a shell's background inherit an ignored SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def has_mapped(process: "subprocess.Popen[bytes]", library: str) -> bool:
    return library in Path(f"/proc/{process.pid}/maps").read_text()


# Each is loaded in the middle of an import: of NumPy, and of tokenizers.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "number", "kernels"),
    [
        ("_multiarray_umath", signal.SIGINT, "auto"),
        pytest.param("tokenizers.abi3", signal.SIGTERM, "auto", marks=pytest.mark.on_demand),
        ("_multiarray_umath", signal.SIGTERM, "reference"),
    ],
)
def test_a_signal_while_libraries_are_imported(
    own_process: CommandLine, library: str, number: int, kernels: str
) -> None:
    with started(own_process, f"runtime.kernels={kernels}") as process:
        wait_until(lambda: has_mapped(process, library), process)
        process.send_signal(number)
        _, err = process.communicate()
    assert (process.returncode, err) == ANSWERS[signal.Signals(number)]


@pytest.mark.on_demand
@pytest.mark.slow
def test_a_signal_at_any_moment(own_process: CommandLine) -> None:
    """From the first import on: before it, Python itself answers."""
    for seed in range(100):
        chance = random.Random(seed)
        number = chance.choice([*ANSWERS])
        with started(own_process) as process:
            wait_until(lambda process=process: has_mapped(process, "_signal"), process)
            time.sleep(chance.uniform(0, 8))
            process.send_signal(number)
            _, err = process.communicate()
        assert process.returncode == 0 or (process.returncode, err) == ANSWERS[number], seed
