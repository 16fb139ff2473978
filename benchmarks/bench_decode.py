"""Times decoding and prefill beside transformers on torch, in one run, and prints one table.

    python benchmarks/bench_decode.py                        # torch in this environment, if installed
    python benchmarks/bench_decode.py --torch-python ~/torch-env/bin/python

GPT-2 124M shapes with random float32 weights; both sides load the same folder. Each side is a process of its
own that waits while the other works; the cases are taken in turn, several rounds, and medians are shown.
Ours is whole engine steps (schedule, run, choose); theirs is the model's forward call and an argmax.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench_model import SHAPES, write_random
from bench_process import Worker, has_torch
from mindbatch.tasks.doctor import processor

CONTEXT, PREFILL = 110, 256
CASES = {"decode, batch 1": 1, "decode, batch 8": 8, "decode, batch 32": 32, f"prefill, {PREFILL} tokens": 0}
TARGETS = dict(zip(CASES, (0.85, None, 0.75, 1.1), strict=True))
STEPS = {1: 16, 8: 12, 32: 8, 0: 4}
WORKERS = {"ours": "bench_decode_ours.py", "transformers": "bench_decode_transformers.py"}


def read_bandwidth(threads: int) -> float:
    """Bytes per second that `threads` threads read from memory together: libc's memcmp over huge pages."""
    share = 256 << 20
    buffers = [(huge_zeros(share), huge_zeros(share)) for _ in range(threads)]
    memcmp = ctypes.CDLL(None).memcmp
    memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    best = 0.0
    for _ in range(7):
        readers = [
            threading.Thread(target=memcmp, args=(one.ctypes.data, two.ctypes.data, share))
            for one, two in buffers
        ]
        started = time.perf_counter()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        best = max(best, 2 * threads * share / (time.perf_counter() - started))
    return best


def huge_zeros(size: int) -> npt.NDArray[np.uint8]:
    """Bytes in memory that is really there, on huge pages where the system has them."""
    mapped = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(mapped, np.uint8)
    array[:] = 0
    return array


def measure(workers: dict[str, Worker], rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds of each case and side, the sides taken in turn."""
    times: dict[str, dict[str, list[float]]] = {case: {side: [] for side in workers} for case in CASES}
    for round_index in range(rounds + 1):
        for case, batch in CASES.items():
            for side, worker in workers.items():
                found = worker.ask(batch=batch, context=CONTEXT, prefill=PREFILL, steps=STEPS[batch])
                if round_index > 0:  # the first round compiles and warms up
                    times[case][side].append(statistics.median(found))
    return {case: {side: statistics.median(t) for side, t in sides.items()} for case, sides in times.items()}


def print_table(times: dict[str, dict[str, float]], bound: float) -> None:
    """One row per case, milliseconds."""
    print(f"| {'case':<20} | ours ms | transformers ms | ratio | target | weights / bandwidth ms |")
    print(f"|{'-' * 22}|--------:|----------------:|------:|-------:|-----------------------:|")
    for case, sides in times.items():
        ours, theirs = sides["ours"] * 1e3, sides.get("transformers", float("nan")) * 1e3
        target = f"{TARGETS[case]:.2f}" if TARGETS[case] else "-"
        floor = f"{bound * 1e3:.1f}" if case.startswith("decode") else "-"
        figures = f"{ours:7.1f} | {theirs:15.1f} | {ours / theirs:5.2f} | {target:>6} | {floor:>22}"
        print(f"| {case:<20} | {figures} |")


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--torch-python", default=sys.executable, help="an interpreter with torch and transformers"
    )
    parser.add_argument("--shapes", choices=SHAPES, default="gpt2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weight_bytes = write_random(folder, SHAPES[options.shapes])
        pythons = {"ours": sys.executable, "transformers": options.torch_python}
        sides = [side for side in WORKERS if side == "ours" or has_torch(pythons[side])]
        if len(sides) == 1:
            print("torch is not installed: transformers is left out (see --torch-python)")
        bandwidth = read_bandwidth(options.threads)
        workers = {side: Worker(pythons[side], WORKERS[side], folder, options.threads) for side in sides}
        times = measure(workers, options.rounds)
        memory = workers["ours"].ask(memory=True)
        print(
            f"{processor()}, {options.threads} threads; {'; '.join(str(w.facts) for w in workers.values())}"
        )
        print(
            f"{options.shapes} shapes, float32, {CONTEXT} tokens of context; "
            f"medians of {options.rounds} rounds"
        )
        print_table(times, weight_bytes / bandwidth)
        budget = weight_bytes + memory["cache_bytes"]
        print(f"memory bandwidth {bandwidth / 1e9:.1f} GB/s, weights {weight_bytes / 1e6:.0f} MB")
        print(
            f"peak memory above the imported libraries' {memory['base_bytes'] / 1e6:.0f} MB: "
            f"{memory['peak_bytes'] / 1e6:.0f} MB = {memory['peak_bytes'] / budget:.2f} x weights + cache "
            f"({budget / 1e6:.0f} MB)"
        )
        for worker in workers.values():
            worker.close()


if __name__ == "__main__":
    main()
