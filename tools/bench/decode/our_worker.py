"""Worker of the decode and precision benchmarks: times whole engine steps."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

from bench.child_process import serve
from bench.process_memory import memory_bytes
from mindbatch import DecodingParams
from mindbatch.config.environment import prepare_environment
from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.engine.engine import Engine
from mindbatch.engine.request import Request
from mindbatch.kernels.native_library import library_text
from mindbatch.loading.build import load_engine
from mindbatch.loading.setup import prepare

CACHE = "2GiB"
"""Holds the states of 32 sequences of Qwen3.5, too."""


def step_times(engine: Engine, batch: int, context: int, prefill: int, steps: int) -> Iterator[float]:
    """Seconds of each step: decoding `batch` sequences, or one prompt of `prefill` tokens if batch is 0."""
    if batch == 0:
        for index in range(steps):
            engine.add(Request(str(index), tuple(range(prefill)), DecodingParams(max_new_tokens=1)))
            started = time.perf_counter()
            while not engine.step().events:  # a long prompt takes several steps
                pass
            yield time.perf_counter() - started
        return
    params = DecodingParams(max_new_tokens=steps + 64, eos_token_id=())
    for index in range(batch):
        engine.add(Request(str(index), tuple(range(index, index + context)), params))
    while not all(group.has_output for group in engine.scheduler.running) or engine.scheduler.waiting:
        engine.step()
    timed_step(engine)
    for _ in range(steps):
        yield timed_step(engine)
        if len(engine.scheduler.running) != batch:  # the cache is too small for all of them
            raise SystemExit(f"{len(engine.scheduler.running)} of {batch} sequences ran")
    engine.abort()


def timed_step(engine: Engine) -> float:
    started = time.perf_counter()
    engine.step()
    return time.perf_counter() - started


def main() -> None:
    """Answers requests until standard input ends. Arguments: folder, threads[, instruction set, type]."""
    folder, threads = sys.argv[1], int(sys.argv[2])
    instructions, kind = sys.argv[3:] or ("auto", "float32")
    types = {"quantization": kind} if kind == "int8" else {"dtype": kind}
    prepare_environment(num_threads=threads)
    import mindspore

    mindspore.set_device("CPU")
    base = memory_bytes("VmRSS")
    # Every round has the same prompts: nothing of them is to be found in the cache.
    runtime = RuntimeConfig(
        cache_memory=CACHE, num_threads=threads, prefix_caching=False, instruction_set=instructions
    )
    loaded = load_engine(
        prepare(ModelConfig(checkpoint_name_or_path=folder, batch_size=32, **types), runtime)
    )

    def answer(memory: bool = False, **case: Any) -> Any:
        if memory:
            peak = memory_bytes("VmHWM") - base
            return {"peak_bytes": peak, "base_bytes": base, "cache_bytes": loaded.cache_bytes}
        return list(step_times(loaded.engine, **case))

    serve(f"MindSpore {mindspore.__version__}, kernels {library_text()}", answer)
