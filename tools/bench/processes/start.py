"""Times the start of two ranks, beside msrun with an empty script and the imports that ranks need.

python tools/bench start [--rounds 3]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.command_line import parser_of
from bench.random_model import write_random
from mindbatch import LLM
from mindbatch.tasks.doctor import processor

IMPORTS = "import mindbatch.replicas.rank_main, mindbatch.engine.model_runner, mindbatch.kernels.native"
"""What each rank with the C++ kernels imports before it can do anything."""
TARGET = 3.0


def seconds_of(action: Callable[[], object], rounds: int) -> float:
    """The median; the first round fills the system's caches of files and is not counted."""
    seconds = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def msrun(folder: Path) -> None:
    """Two processes with an empty script."""
    script = folder / "empty.py"
    script.write_text("")
    command = [Path(sys.executable).with_name("msrun"), "--worker_num=2", "--local_worker_num=2"]
    command += ["--join=True", f"--log_dir={folder}", script]
    subprocess.run(command, check=True, capture_output=True)


def imports() -> None:
    """Two processes at once that import what ranks need."""
    command = [sys.executable, "-c", IMPORTS]
    for process in [subprocess.Popen(command) for _ in range(2)]:
        process.wait()


def main() -> None:
    """Runs the benchmark."""
    parser = parser_of(__doc__, rounds=3)
    options = parser.parse_args()
    print(f"{processor()}; GPT-2 124M shapes, float32")
    with tempfile.TemporaryDirectory() as name:
        write_random(Path(name))
        print_table(Path(name), options.rounds)


def print_table(model: Path, rounds: int) -> None:
    """Times all four and prints a row for each."""
    with tempfile.TemporaryDirectory() as folder:
        bare = seconds_of(lambda: msrun(Path(folder)), rounds)
    needed = seconds_of(imports, rounds)
    print("| start of                          | seconds | over both |")
    print("|-----------------------------------|--------:|----------:|")
    print(f"| msrun, two empty scripts          | {bare:7.1f} |         - |")
    print(f"| imports in two processes          | {needed:7.1f} |         - |")
    for name in ("data_parallel", "model_parallel", "pipeline_stage"):
        took = seconds_of(lambda name=name: LLM(model, **{name: 2}).close(), rounds)  # type: ignore[misc]
        print(f"| {name + '=2':<33} | {took:7.1f} | {took - bare - needed:9.1f} |")
    print(f"at most {TARGET} s over both are wanted")
