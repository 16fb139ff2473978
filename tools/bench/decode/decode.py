"""Times decoding and prefill beside transformers on torch, in one run, and prints one table.

    python tools/bench decode                        # torch in this environment, if installed
    python tools/bench decode --torch-python ~/torch-env/bin/python

GPT-2 124M shapes with random float32 weights; both sides load the same folder. Each side is a process of its
own that waits while the other works; the cases are taken in turn, several rounds, and medians are shown.
Ours is whole engine steps (schedule, run, choose); theirs is the model's forward call and an argmax.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from bench.child_process import Worker, has_modules
from bench.command_line import parser_of
from bench.memory_bandwidth import read_bandwidth
from bench.random_model import SHAPES, write_random
from mindbatch.tasks.doctor import processor

CONTEXT, PREFILL = 110, 256
CASES = {"decode, batch 1": 1, "decode, batch 8": 8, "decode, batch 32": 32, f"prefill, {PREFILL} tokens": 0}
TARGETS = dict(zip(CASES, (0.85, None, 0.75, 1.1), strict=True))
STEPS = {1: 16, 8: 12, 32: 8, 0: 4}
TORCH = ("torch", "transformers")
WORKERS = {"ours": "decode.our_worker", "transformers": "decode.transformers_worker"}


def measure(workers: dict[str, Worker], rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds of each case and side, the sides taken in turn."""
    times: dict[str, dict[str, list[float]]] = {case: {side: [] for side in workers} for case in CASES}
    for round_index in range(rounds + 1):
        for case, batch in CASES.items():
            for side, worker in workers.items():
                seconds = worker.ask(batch=batch, context=CONTEXT, prefill=PREFILL, steps=STEPS[batch])
                if round_index > 0:  # the first round compiles and warms up
                    times[case][side].append(statistics.median(seconds))
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
    parser = parser_of(__doc__, rounds=5, has_threads=True)
    parser.add_argument(
        "--torch-python", default=sys.executable, help="an interpreter with torch and transformers"
    )
    parser.add_argument("--shapes", choices=SHAPES, default="gpt2")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weight_bytes = write_random(folder, SHAPES[options.shapes])
        pythons = {"ours": sys.executable, "transformers": options.torch_python}
        sides = [side for side in WORKERS if side == "ours" or has_modules(pythons[side], *TORCH)]
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
