"""SIGINT and SIGTERM while a process starts and loads: one line and the exit code, never a crash."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command_line import CommandLine

ANSWERS = {
    signal.SIGINT: (130, b"mindbatch: interrupted\n"),
    signal.SIGTERM: (143, b"mindbatch: terminated\n"),
}


def started(command: CommandLine) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "mindbatch", "generate", "model=tiny_gpt2", "prompts=hello"],
        cwd=command.here,
        env={"PATH": os.environ["PATH"], "HOME": str(command.home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Tests that run in a shell's background inherit an ignored SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def has_mapped(process: "subprocess.Popen[bytes]", library: str) -> bool:
    assert process.poll() is None, f"it ended before it had loaded {library}"
    return library in Path(f"/proc/{process.pid}/maps").read_text()


# Each is loaded in the middle of an import: of NumPy, of tokenizers, and, twice, of MindSpore's own modules.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "number"),
    [
        ("_multiarray_umath", signal.SIGINT),
        ("tokenizers.abi3", signal.SIGTERM),
        ("_safetensors_rust", signal.SIGINT),
        ("_rank_filter_1d", signal.SIGTERM),
    ],
)
def test_a_signal_while_libraries_are_imported(command: CommandLine, library: str, number: int) -> None:
    with started(command) as process:
        while not has_mapped(process, library):
            pass
        process.send_signal(number)
        _, err = process.communicate()
    assert (process.returncode, err) == ANSWERS[signal.Signals(number)]


@pytest.mark.on_demand
@pytest.mark.slow
def test_a_signal_at_any_moment(command: CommandLine) -> None:
    """From the first import on: before it, Python itself answers."""
    for seed in range(100):
        chance = random.Random(seed)
        number = chance.choice([*ANSWERS])
        with started(command) as process:
            while not has_mapped(process, "_signal"):
                pass
            time.sleep(chance.uniform(0, 8))
            process.send_signal(number)
            _, err = process.communicate()
        assert process.returncode == 0 or (process.returncode, err) == ANSWERS[number], seed
