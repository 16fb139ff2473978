"""Worker of the lora benchmark: times the same steps of transformers and PEFT on torch."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import peft
import torch
import transformers

from bench.child_process import serve

CONTEXT = 31


def median_seconds(steps: int, step: Callable[[], object]) -> float:
    """Times a step, after one that warms up."""
    times = []
    for _ in range(steps + 1):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def step_over(model: Any, base: Any, ids: torch.Tensor, **options: Any) -> Callable[[], object]:
    """Decodes one token of each row again and again after the same context."""
    cache = base(ids[:, :CONTEXT], use_cache=True, logits_to_keep=1).past_key_values

    def step() -> None:
        output = model(ids[:, CONTEXT:], past_key_values=cache, use_cache=True, **options)
        output.logits[:, -1:].argmax(-1)
        cache.crop(CONTEXT)

    return step


def main() -> None:
    """Answers requests until standard input ends."""
    folder, threads, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    names = [f"adapter{number}" for number in range(count)]
    model = peft.PeftModel.from_pretrained(base, folder / "adapters/0", adapter_name=names[0])
    for number, name in enumerate(names[1:], start=1):
        model.load_adapter(folder / f"adapters/{number}", adapter_name=name)
    model.eval()

    def answer(rows: int, steps: int) -> dict[str, float]:
        ids = torch.arange(CONTEXT + 1)[None] + torch.arange(rows)[:, None]
        with model.disable_adapter():
            without = median_seconds(steps, step_over(model, base, ids))
        of_rows = [names[row % count] for row in range(rows)]
        mixed = median_seconds(steps, step_over(model, base, ids, adapter_names=of_rows))
        parts = [step_over(model, base, ids[number::count]) for number in range(count)]

        def switch() -> None:
            for name, part in zip(names, parts, strict=True):
                model.set_adapter(name)
                part()

        return {"base": without, "mixed": mixed, "switched": median_seconds(steps, switch)}

    with torch.inference_mode():
        serve(f"torch {torch.__version__}, peft {peft.__version__}", answer)
