"""Loads weights once for the load benchmark; prints GB/s, GB per processor second, and peak memory."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from bench.process_memory import memory_bytes
from mindbatch.backends.loader import load_weights
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.kernels.choice import choose_kernels
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import describe


def main() -> None:
    """Loads the weights once. Arguments: folder, model.dtype, model.quantization or none, threads."""
    folder, dtype, quantization, threads = sys.argv[1:]
    kernels = choose_kernels(
        "native", "CPU", int(threads), dtype, None if quantization == "none" else quantization
    )
    with ModelFolder(Path(folder)) as opened:
        arch = describe(opened.config)
        before, wall, core = memory_bytes("VmHWM"), time.perf_counter(), time.process_time()
        weights = load_weights(ModelSpec.of(arch), opened, kernels)
        wall, core = time.perf_counter() - wall, time.process_time() - core
        nbytes = opened.nbytes
    kept_bytes = sum(array.nbytes for array in weights.parameters.values())
    peak = memory_bytes("VmHWM") - before
    print(nbytes / wall / 1e9, nbytes / core / 1e9, peak / kept_bytes)
