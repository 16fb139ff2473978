"""How fast weights are loaded from the page cache: read, converted and packed, by stored and kept type.

    python tools/bench load
    python tools/bench load --shapes gpt2 --stored F32 --kept int8 --rounds 1

Folders of random weights; each load is a process of its own with --threads threads. All cases go by turns.
Shown are the medians of stored GB a second, of stored GB for each second of processor time (all threads, the
system's part included), and of the peak of memory over what was there before, in times the kept weights.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.child_process import command
from bench.command_line import parser_of
from bench.random_model import SHAPES, write_random

STORED = ("F32", "BF16", "F16")
KEPT = {"float32": ("float32", "none"), "bfloat16": ("bfloat16", "none"), "int8": ("auto", "int8")}
"""By name: what model.dtype and model.quantization are."""


def main() -> None:
    """Runs the benchmark."""
    options = parse_options()
    with tempfile.TemporaryDirectory() as name:
        cases = {}
        for shape, stored in itertools.product(options.shapes, options.stored):
            folder = stored_as(Path(name), shape, stored)
            cases |= {(shape, stored, kept): folder for kept in options.kept}
        samples: dict[tuple[str, str, str], list[list[float]]] = {case: [] for case in cases}
        for _ in range(options.rounds):
            for case, folder in cases.items():
                samples[case].append(measured(folder, case[2], options.threads))
    print("| shapes  | stored | kept     |  GB/s | GB/s a core | peak |")
    print("|---------|--------|----------|------:|------------:|-----:|")
    for (shape, stored, kept), figures in samples.items():
        wall, core, peak = (statistics.median(column) for column in zip(*figures, strict=True))
        print(f"| {shape:<7} | {stored:<6} | {kept:<8} | {wall:5.2f} | {core:11.2f} | {peak:4.2f} |")


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = parser_of(__doc__, rounds=3, has_threads=True)
    parser.add_argument("--shapes", nargs="+", default=["gpt2", "qwen2.5"], choices=SHAPES)
    parser.add_argument("--stored", nargs="+", default=[*STORED], choices=STORED)
    parser.add_argument("--kept", nargs="+", default=[*KEPT], choices=KEPT)
    return parser.parse_args()


def stored_as(home: Path, shape: str, stored: str) -> Path:
    """A folder of random weights in a type; it is in the page cache afterwards."""
    from safetensors.numpy import load_file

    from mindbatch.checkpoint.formats.floats import converted

    whole, folder = home / f"{shape}-F32", home / f"{shape}-{stored}"
    if not whole.exists():
        whole.mkdir()
        write_random(whole, SHAPES[shape])
    if folder == whole:
        return folder
    folder.mkdir()
    (folder / "config.json").write_text((whole / "config.json").read_text())
    arrays = load_file(whole / "model.safetensors")
    entries, position = {}, 0
    for name, array in arrays.items():
        span = [position, position + array.nbytes // 2]
        entries[name] = {"dtype": stored, "shape": [*array.shape], "data_offsets": span}
        position = span[1]
    header = json.dumps(entries).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for array in arrays.values():
            file.write(np.ascontiguousarray(converted(array, "F32", stored)[0]).data.cast("B"))
    return folder


def measured(folder: Path, kept: str, threads: int) -> list[float]:
    """Loads the weights in a process of its own; returns the three figures that it prints."""
    child = command(sys.executable, "load.load_job", folder, *KEPT[kept], threads)
    done = subprocess.run(child, check=True, text=True, stdout=subprocess.PIPE)
    return [float(word) for word in done.stdout.split()]
