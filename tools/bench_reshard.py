"""Time and memory of a reshard, against copying the same bytes with cp and fsync in the same run.

    python tools/bench_reshard.py
    python tools/bench_reshard.py --megabytes 200 --rounds 1

A Llama checkpoint of random bfloat16 weights, with digests, is cut for several ranks. Both ways start with
the source in the page cache and end when everything is on the disk. Exits with 1 above --allowed times the
copy.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench_reshard_model import write_llama

RESHARD = Path(__file__).with_name("bench_reshard_run.py")


def main() -> None:
    """Runs all ways by turns and prints a line for each."""
    options = parse_options()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        nbytes = write_llama(folder / "source", options.megabytes * 10**6)
        print(
            f"{nbytes / 1e9:.2f} GB of bfloat16, {options.ways} ranks, {options.workers} processes",
            flush=True,
        )
        copies, reshards = [], []
        for _ in range(options.rounds):
            copies.append(timed(folder / "copy", lambda: copy(folder / "source", folder / "copy"))[0])
            reshards.append(timed(folder / "cut", lambda: reshard(folder, options)))
        copying = statistics.median(copies)
        cutting = statistics.median(seconds for seconds, _ in reshards)
        peak = max(int(printed.split()[-1]) for _, printed in reshards)
        print(f"cp and fsync  {copying:7.2f} s  {nbytes / copying / 1e6:6.0f} MB/s")
        print(
            f"reshard       {cutting:7.2f} s  {nbytes / cutting / 1e6:6.0f} MB/s  "
            f"{cutting / copying:.2f} times the copy  peak {peak / 1e6:.0f} MB in all processes"
        )
        if cutting > options.allowed * copying:
            raise SystemExit(f"more than {options.allowed} times the copy")


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--ways", type=int, default=8)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3, help="the medians are compared")
    parser.add_argument("--allowed", type=float, default=2.0)
    parser.add_argument("--folder", type=Path, help="where to write; default: that of temporary files")
    return parser.parse_args()


def timed(made: Path, work: Callable[[], str]) -> tuple[float, str]:
    """Seconds, and what the work has printed. What it has made is removed afterwards."""
    os.sync()
    start = time.perf_counter()
    printed = work()
    seconds = time.perf_counter() - start
    shutil.rmtree(made)
    return seconds, printed


def copy(source: Path, target: Path) -> str:
    """cp, and everything synced."""
    subprocess.run(["cp", "-r", source, target], check=True)
    for path in [*target.rglob("*"), target]:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    return ""


def reshard(folder: Path, options: argparse.Namespace) -> str:
    """The reshard, in a process of its own."""
    arguments = [folder / "source", folder / "cut", options.ways, options.workers]
    return run(RESHARD, *arguments)


def run(script: Path, *arguments: object) -> str:
    """A script in a process of its own; returns what it prints."""
    done = subprocess.run(
        [sys.executable, script, *map(str, arguments)], check=True, text=True, stdout=subprocess.PIPE
    )
    return done.stdout.strip()


if __name__ == "__main__":
    main()
