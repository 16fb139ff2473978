"""How fast weights are loaded from the page cache: read, converted and packed, by stored and kept type.

    python benchmarks/bench_load.py
    python benchmarks/bench_load.py --shapes gpt2 --stored F32 --kept int8 --rounds 1

Folders of random weights; each load is a process of its own with --threads threads. All cases go by turns.
Shown are the medians of stored GB a second, of stored GB for each second of processor time (all threads, the
system's part included), and of the peak of memory over what was there before, in times the kept weights.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bench_model import SHAPES, write_random

STORED = ("F32", "BF16", "F16")
KEPT = {"float32": ("float32", None), "bfloat16": ("bfloat16", None), "int8": ("auto", "int8")}
"""By name: what model.dtype and model.quantization are."""


def main() -> None:
    """Runs the benchmark, or one load of it."""
    if sys.argv[1:2] == ["load"]:
        load(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
        return
    options = parse_options()
    with tempfile.TemporaryDirectory() as name:
        cases = {}
        for shape, stored in itertools.product(options.shapes, options.stored):
            folder = stored_as(Path(name), shape, stored)
            cases |= {(shape, stored, kept): folder for kept in options.kept}
        found: dict[tuple[str, str, str], list[list[float]]] = {case: [] for case in cases}
        for _ in range(options.rounds):
            for case, folder in cases.items():
                found[case].append(measured(folder, case[2], options.threads))
    print("| shapes  | stored | kept     |  GB/s | GB/s a core | peak |")
    print("|---------|--------|----------|------:|------------:|-----:|")
    for (shape, stored, kept), figures in found.items():
        wall, core, peak = (statistics.median(each) for each in zip(*figures, strict=True))
        print(f"| {shape:<7} | {stored:<6} | {kept:<8} | {wall:5.2f} | {core:11.2f} | {peak:4.2f} |")


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", default=["gpt2", "qwen2.5"], choices=SHAPES)
    parser.add_argument("--stored", nargs="+", default=[*STORED], choices=STORED)
    parser.add_argument("--kept", nargs="+", default=[*KEPT], choices=KEPT)
    parser.add_argument("--rounds", type=int, default=3, help="%(default)s")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="%(default)s")
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
    """What `load` prints in a process of its own."""
    command = [sys.executable, __file__, "load", str(folder), kept, str(threads)]
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
    return [float(word) for word in done.stdout.split()]


def load(folder: Path, kept: str, threads: int) -> None:
    """Loads the weights once, and prints the three figures."""
    from mindbatch.backends.loader import load_weights
    from mindbatch.checkpoint.folders.model_folder import ModelFolder
    from mindbatch.kernels.choice import choose_kernels
    from mindbatch.model_spec.model_spec import ModelSpec
    from mindbatch.model_spec.registry import describe

    dtype, quantization = KEPT[kept]
    kernels = choose_kernels("native", "CPU", threads, dtype, quantization)
    with ModelFolder(folder) as opened:
        arch = describe(opened.config)
        before, wall, core = peak_memory(), time.perf_counter(), time.process_time()
        weights = load_weights(ModelSpec.of(arch), opened, kernels)
        wall, core = time.perf_counter() - wall, time.process_time() - core
        nbytes = opened.nbytes
    held = sum(array.nbytes for array in weights.parameters.values())
    print(nbytes / wall / 1e9, nbytes / core / 1e9, (peak_memory() - before) / held)


def peak_memory() -> int:
    """The highest resident size of this process so far, in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


if __name__ == "__main__":
    main()
