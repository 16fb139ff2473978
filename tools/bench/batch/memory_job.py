"""Worker of the memory benchmark: runs one batch job over a stub of the model."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.child_process import serve
from bench.process_memory import memory_bytes
from mindbatch.config.model_schema import DecodingConfig
from mindbatch.config.paths import data_root
from mindbatch.dataset.data_config import DataConfig
from mindbatch.engine.engine import Engine
from mindbatch.engine.settings import EngineSettings
from mindbatch.engine.step import Step, StepOutput
from mindbatch.llm import LLM
from mindbatch.loading.build import LoadedEngine
from mindbatch.prompts.token_bytes import IncrementalDetokenizer
from mindbatch.prompts.tokenizer import Tokenizer
from mindbatch.run.batch_config import BatchConfig, BatchOutputConfig
from mindbatch.run.job import BatchJob

VOCABULARY = 512
NEW_TOKENS = 4
SETTINGS = EngineSettings(batch_size=32, seq_length=256, block_size=16, num_blocks=512)
TOKENIZER = data_root() / "examples/tiny_gpt2"


class StubRunner:
    """Continues every sequence with the token after its last one."""

    vocab_size = VOCABULARY

    def run(self, step: Step) -> StubOutput:
        """Computes nothing."""
        last = [tokens.sequence.tokens(tokens.stop - 1, tokens.stop)[0] for tokens in step.scheduled]
        ends = np.cumsum([tokens.stop - tokens.start for tokens in step.scheduled]) - 1
        return StubOutput(dict(zip(ends.tolist(), last, strict=True)))


class StubOutput(StepOutput):
    """Logits of the last token of each sequence, by its index in the step."""

    def __init__(self, last: dict[int, int]) -> None:
        self._last = last

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        logits = np.zeros((len(tokens), VOCABULARY), np.float32)
        logits[np.arange(len(tokens)), [(self._last[token] + 1) % VOCABULARY for token in tokens]] = 1
        return logits


def stub_llm(tokenizer: Tokenizer | None) -> LLM:
    """An LLM over the stub."""
    make = None if tokenizer is None else partial(IncrementalDetokenizer, tokenizer)
    engine = Engine(StubRunner(), SETTINGS, make)
    return LLM.over(LoadedEngine(engine, tokenizer, 0))


def write_rows(path: Path, count: int, *, text: bool) -> None:
    """Rows of 8 to 40 tokens, each with a key."""
    draw = random.Random(0)
    with path.open("w") as file:
        for number in range(count):
            ids = draw.choices(range(VOCABULARY), k=draw.randint(8, 40))
            prompt = " ".join(map(str, ids)) if text else ids
            file.write(json.dumps({"id": f"row-{number}", "prompt": prompt}) + "\n")


def run_job(folder: Path, rows: int, text: bool, format: str) -> dict[str, Any]:
    """Runs one job over new rows; seconds and bytes."""
    write_rows(folder / "rows.jsonl", rows, text=text)
    tokenizer = Tokenizer.load(TOKENIZER) if text else None
    config = BatchConfig(
        data=DataConfig(path=str(folder / "rows.jsonl"), key_column="id"),
        output=BatchOutputConfig(dir=str(folder / "run"), format=format),
        decoding=DecodingConfig(max_new_tokens=NEW_TOKENS),
        progress="none",
    )
    base, started = memory_bytes("VmRSS"), time.perf_counter()
    code = BatchJob(config, {"weights": "stub"}, lambda folder: stub_llm(tokenizer), lambda: tokenizer).run()
    seconds = time.perf_counter() - started
    if code:
        raise SystemExit(f"the job ended with exit code {code}")
    return {"seconds": seconds, "base_bytes": base, "peak_bytes": memory_bytes("VmHWM")}


def main() -> None:
    """Answers requests until standard input ends."""
    serve(None, partial(run_job, Path(sys.argv[1])))
