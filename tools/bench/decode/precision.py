"""Times decoding and prefill with weights in float32, bfloat16 and int8, in one run, and prints one table.

    python tools/bench precision
    python tools/bench precision --rounds 5 --instruction-set avx2

GPT-2 124M shapes with random weights, whole engine steps. Each type is a process of its own that waits while
the others work; the cases are taken in turn, several rounds, and medians are shown. In brackets: the time in
which the weights are read from memory, below which no step of a decoding batch can be.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench.child_process import Worker
from bench.command_line import parser_of
from bench.decode.decode import CONTEXT, measure
from bench.memory_bandwidth import read_bandwidth
from bench.random_model import write_random
from mindbatch.tasks.doctor import processor

TYPES = {"float32": 1, "bfloat16": 2, "int8": 4}
"""By type: how many times smaller than in float32 the weights are."""


def print_table(times: dict[str, dict[str, float]], bounds: dict[str, float]) -> None:
    """One row per case, milliseconds."""
    print(f"| {'case':<20} |" + "".join(f" {kind:>16} |" for kind in TYPES))
    print(f"|{'-' * 22}|" + "-----------------:|" * len(TYPES))
    for case, sides in times.items():
        cells = [f"{sides[kind] * 1e3:.1f}" for kind in TYPES]
        if case.startswith("decode"):
            cells = [f"{cell} ({bounds[kind] * 1e3:.1f})" for cell, kind in zip(cells, TYPES, strict=True)]
        print(f"| {case:<20} |" + "".join(f" {cell:>16} |" for cell in cells))


def main() -> None:
    """Runs the benchmark."""
    parser = parser_of(__doc__, rounds=5, has_threads=True)
    parser.add_argument("--instruction-set", default="auto", help="see runtime.instruction_set")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weight_bytes = write_random(folder)
        bandwidth = read_bandwidth(options.threads)
        rest = (options.threads, options.instruction_set)
        workers = {kind: Worker(sys.executable, "decode.our_worker", folder, *rest, kind) for kind in TYPES}
        times = measure(workers, options.rounds)
        peaks = {kind: worker.ask(memory=True) for kind, worker in workers.items()}
        print(f"{processor()}, {options.threads} threads; {workers['int8'].facts}")
        print(f"GPT-2 124M shapes, {CONTEXT} tokens of context; medians of {options.rounds} rounds")
        print_table(times, {kind: weight_bytes / part / bandwidth for kind, part in TYPES.items()})
        print(f"memory bandwidth {bandwidth / 1e9:.1f} GB/s, float32 weights {weight_bytes / 1e6:.0f} MB")
        for kind, peak in peaks.items():
            print(f"{kind}: peak memory {peak['peak_bytes'] / 1e6:.0f} MB above the imported libraries'")
        for worker in workers.values():
            worker.close()
