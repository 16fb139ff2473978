"""Worker of the decode benchmark: times transformers on torch."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers

from bench.child_process import serve


def step_times(model: Any, batch: int, context: int, prefill: int, steps: int) -> Iterator[float]:
    """Seconds of each step: decoding `batch` sequences, or one prompt of `prefill` tokens if batch is 0."""
    if batch == 0:
        ids = torch.arange(prefill)[None]
        for _ in range(steps):
            started = time.perf_counter()
            model(ids, use_cache=True, logits_to_keep=1).logits.argmax(-1)
            yield time.perf_counter() - started
        return
    ids = torch.arange(context)[None] + torch.arange(batch)[:, None]
    cache = model(ids, use_cache=True, logits_to_keep=1).past_key_values
    token = ids[:, -1:]
    for _ in range(steps):
        started = time.perf_counter()
        output = model(token, past_key_values=cache, use_cache=True)
        token, cache = output.logits[:, -1:].argmax(-1), output.past_key_values
        yield time.perf_counter() - started


def main() -> None:
    """Answers requests until standard input ends."""
    folder, threads = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        serve(
            f"torch {torch.__version__}, transformers {transformers.__version__}",
            lambda **case: list(step_times(model, **case)),
        )
