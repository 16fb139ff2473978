"""Our side of the peers benchmark."""

from __future__ import annotations

import os

from bench.batch.our_worker import Run
from bench.decode.our_worker import step_times
from bench.peers.peer import INSTRUCTIONS, Rows, run_peer
from mindbatch import LLM
from mindbatch.config.environment import prepare_environment
from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.kernels.native_library import library_text
from mindbatch.loading.build import LoadedEngine, load_engine
from mindbatch.loading.setup import prepare

BATCH_SIZE, CACHE = 64, "1GiB"
TYPES = {
    "float32": {"dtype": "float32"},
    "float32, half cache": {"dtype": "float32", "cache_dtype": "bfloat16"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
}
"""By kind: keys of `model`."""


class Ours:
    """The whole engine; prompts are not looked for in the cache."""

    def __init__(self, loaded: LoadedEngine) -> None:
        self._engine, self._llm = loaded.engine, LLM.over(loaded)
        self.facts = f"kernels {library_text()}, batch_size={BATCH_SIZE}, cache_memory={CACHE}"

    def generate(self, rows: Rows) -> list[list[int]]:
        outcome = Run(self._llm, list(rows)).advance(None)
        assert outcome is not None
        answers: list[list[int]] = outcome["answers"]
        return answers

    def decode(self, batch: int, context: int, steps: int) -> list[float]:
        return list(step_times(self._engine, batch, context, 0, steps))

    def prefill(self, tokens: int, times: int) -> list[float]:
        return list(step_times(self._engine, 0, 0, tokens, times))


def load(folder: str, kind: str, threads: int) -> Ours:
    """The folder's model with its weights in float32, bfloat16 or quantised."""
    prepare_environment(num_threads=threads)
    model = ModelConfig(checkpoint_name_or_path=folder, batch_size=BATCH_SIZE, **TYPES[kind])
    runtime = RuntimeConfig(
        cache_memory=CACHE,
        num_threads=threads,
        prefix_caching=False,
        instruction_set=os.environ.get(INSTRUCTIONS, "auto"),
    )
    return Ours(load_engine(prepare(model, runtime)))


def main() -> None:
    run_peer(load)
