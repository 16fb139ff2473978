"""Worker of the batch benchmark: runs transformers' generate on torch, one padded batch a request."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers

from bench.child_process import serve

PAD = 0


def generate(model: Any, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
    """Greedy continuations of a batch, padded on the left: their tokens, and the seconds it took."""
    started = time.perf_counter()
    width = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    output = model.generate(
        ids,
        attention_mask=mask,
        do_sample=False,
        max_new_tokens=new_tokens,
        eos_token_id=None,
        pad_token_id=PAD,
    )
    answers = output[:, width:].tolist()
    seconds = time.perf_counter() - started
    if any(len(answer) != new_tokens for answer in answers):
        raise SystemExit(f"transformers ended before {new_tokens} tokens")
    return {"seconds": seconds, "answers": answers}


def main() -> None:
    """Answers requests until standard input ends."""
    folder, threads = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    with torch.inference_mode():
        serve(
            f"torch {torch.__version__}, transformers {transformers.__version__}",
            lambda **batch: generate(model, **batch),
        )
