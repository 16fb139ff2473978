"""transformers' side of the peers benchmark: padded batches of 16, sorted by the length of the prompt."""

from __future__ import annotations

import os

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from typing import Any

import torch
import transformers

from bench.batch.transformers_worker import generate
from bench.decode.transformers_worker import step_times
from bench.peers.peer import Rows, padded_batches, run_peer

BATCH = 16


class Transformers:
    """A model on torch."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.facts = f"torch {torch.__version__}, transformers {transformers.__version__}, batches of {BATCH}"

    @torch.inference_mode()
    def generate(self, rows: Rows) -> list[list[int]]:

        def run(indices: list[int], new_tokens: int) -> list[list[int]]:
            outcome = generate(self._model, [rows[index]["prompt"] for index in indices], new_tokens)
            answers: list[list[int]] = outcome["answers"]
            return answers

        return padded_batches(rows, BATCH, run)

    @torch.inference_mode()
    def decode(self, batch: int, context: int, steps: int) -> list[float]:
        return list(step_times(self._model, batch, context, 0, steps))

    @torch.inference_mode()
    def prefill(self, tokens: int, times: int) -> list[float]:
        return list(step_times(self._model, 0, 0, tokens, times))


def load(folder: str, kind: str, threads: int) -> Transformers:
    """The folder's model in float32 or bfloat16."""
    torch.set_num_threads(threads)
    dtype = getattr(torch, kind)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    return Transformers(model)


def main() -> None:
    run_peer(load)
