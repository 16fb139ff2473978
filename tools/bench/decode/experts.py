"""Times decoding of a mixture of experts beside a dense model with as many active parameters, in one process.

    python tools/bench experts
    python tools/bench experts --experts 64 --chosen 8 --dtype bfloat16

Qwen3 shapes with random weights; the dense MLP is as wide as the chosen experts together. Whole engine steps,
one token for each of `--batch` rows, greedy; the two are taken in turn, and medians are shown. With 32 rows
nearly all experts are chosen by some row, so a mixture reads experts / chosen times the weights: where those
leave the caches, memory is what it waits for.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.command_line import parser_of
from bench.random_model import write_random
from mindbatch import LLM, DecodingParams
from mindbatch.tasks.doctor import processor

PROMPT, STEPS = 16, 32


@dataclass(frozen=True)
class Sizes:
    """Sizes of the two models. inner: intermediate size of one expert. chosen: experts of a token."""

    hidden: int
    inner: int
    layers: int
    experts: int
    chosen: int

    def config(self, *, has_experts: bool) -> dict[str, Any]:
        """config.json of one of them."""
        common = {
            "vocab_size": 8192,
            "hidden_size": self.hidden,
            "intermediate_size": self.chosen * self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.hidden // 64,
            "num_key_value_heads": max(1, self.hidden // 256),
            "head_dim": 64,
            "max_position_embeddings": 1024,
            "tie_word_embeddings": True,
        }
        if not has_experts:
            return common | {"model_type": "qwen3"}
        experts = {"num_experts": self.experts, "num_experts_per_tok": self.chosen, "norm_topk_prob": True}
        return common | experts | {"model_type": "qwen3_moe", "moe_intermediate_size": self.inner}


def tokens_per_second(llm: LLM, batch: int) -> float:
    """Measures decoding alone: the time of the prompts with their first token is subtracted."""
    prompts = [[(7 * row + i) % 8192 for i in range(PROMPT)] for row in range(batch)]

    def seconds(tokens: int) -> float:
        started = time.perf_counter()
        llm.generate(prompts, DecodingParams(max_new_tokens=tokens))
        return time.perf_counter() - started

    return batch * STEPS / (seconds(STEPS + 1) - seconds(1))


def main() -> None:
    """Runs the benchmark."""
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--inner", type=int, default=192, help="hidden size of each expert")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--chosen", type=int, default=8, help="experts of each token")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    sizes = Sizes(options.hidden, options.inner, options.layers, options.experts, options.chosen)
    with tempfile.TemporaryDirectory() as name:
        models = {}
        for kind, has_experts in (("dense", False), ("experts", True)):
            folder = Path(name) / kind
            folder.mkdir()
            write_random(folder, sizes.config(has_experts=has_experts), spread=0.05)
            models[kind] = LLM(folder, dtype=options.dtype, batch_size=options.batch)
        rates: dict[str, list[float]] = {kind: [] for kind in models}
        for _ in range(options.rounds + 1):  # the first one warms up
            for kind, llm in models.items():
                rates[kind].append(tokens_per_second(llm, options.batch))
    dense, experts = (statistics.median(rates[kind][1:]) for kind in models)
    print(f"{processor()}; {sizes}, {options.dtype}, batch {options.batch}")
    print(f"dense {dense:.0f} tokens/s, experts {experts:.0f} tokens/s: {dense / experts:.2f} times")
