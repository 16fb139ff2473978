"""Worker of the lora benchmark: times steps of one token for each row, without adapters and with them."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

from bench.child_process import serve
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.config.environment import prepare_environment
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.registry import strategy_for
from mindbatch.decoding.row import Row
from mindbatch.engine.request import Request
from mindbatch.engine.sequence import Sequence, SequenceGroup
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import ScheduledTokens, Step
from mindbatch.kernels.native_library import library_text
from mindbatch.model_spec.registry import describe as architecture_of

BLOCK, MAX_ROWS = 32, 256
CONTEXT = BLOCK - 1
SETTINGS = EngineSettings(
    batch_size=MAX_ROWS,
    seq_length=BLOCK,
    block_size=BLOCK,
    num_blocks=MAX_ROWS,
    max_batched_tokens=MAX_ROWS,
)


def step_of(rows: int, adapters: int) -> Step:
    """The token after CONTEXT others of each row, with the adapters in turn; 0 is none."""
    params, scheduled = DecodingParams(max_new_tokens=1), []
    for number in range(rows):
        ids = tuple(range(number, number + BLOCK))
        sequence = Sequence(Row(params, ids, [], (), number), None, block_table=[number])
        request = Request(str(number), ids, params)
        group = SequenceGroup(request, strategy_for(params), [sequence], BLOCK + 1)
        slot = 1 + number % adapters if adapters else 0
        scheduled.append(ScheduledTokens(group, sequence, CONTEXT, BLOCK, 1, slot))
    return Step(scheduled, num_tokens=rows)


def seconds(runner: Any, step: Step) -> float:
    """Times one step, its logits included."""
    started = time.perf_counter()
    runner.run(step).logits(range(step.num_tokens))
    return time.perf_counter() - started


def main() -> None:
    """Answers requests until standard input ends."""
    folder, threads = Path(sys.argv[1]), int(sys.argv[2])
    prepare_environment(num_threads=threads)
    import mindspore

    from mindbatch.backends import native
    from mindbatch.engine.model_runner import ModelRunner
    from mindbatch.kernels.choice import choose_kernels
    from mindbatch.kernels.shapes import CacheGeometry
    from mindbatch.model_spec.model_spec import ModelSpec
    from mindbatch.parallel.context import initialise

    initialise("CPU")
    paths = sorted((folder / "adapters").iterdir(), key=lambda path: int(path.name))
    kernels, geometry = choose_kernels("auto", "CPU", threads), CacheGeometry(SETTINGS.num_blocks, BLOCK)
    with ModelFolder(folder) as opened:
        arch = architecture_of(opened.config)
        fitted = native.fit_adapters(ModelSpec.of(arch), {path.name: open_adapter(path) for path in paths})
        models = [
            native.load(ModelSpec.of(arch), opened, kernels, geometry, adapters=adapters)
            for adapters in (None, fitted)
        ]
    base, adapted = (ModelRunner(model, SETTINGS) for model in models)
    bank = models[1].adapters
    assert bank is not None

    def load_seconds(slot: int) -> float:
        started = time.perf_counter()
        bank.load(slot, bank.names[slot - 1])
        return time.perf_counter() - started

    loading = [load_seconds(slot) for slot in range(1, len(paths) + 1)]

    def answer(rows: int = 0, adapters: int = 0, steps: int = 0, loads: int = 0) -> Any:
        if loads:
            return statistics.median([*loading, *(load_seconds(slot + 1) for slot in range(loads))])
        pairs = [(base, step_of(rows, 0)), (adapted, step_of(rows, adapters))]
        times = [[seconds(*pair) for pair in pairs] for _ in range(steps + 1)][1:]  # the first compiles
        return [statistics.median(column) for column in zip(*times, strict=True)]

    serve(f"MindSpore {mindspore.__version__}, kernels {library_text()}", answer)
