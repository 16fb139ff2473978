"""Our side of the gguf benchmark: generates from a file, with its numbers as stored or widened."""

from __future__ import annotations

import sys
import time

from bench.child_process import serve
from mindbatch import LLM

TOKENS = 64
PROMPT = "The quick brown fox jumps over the lazy dog, and then it rests. " * 16


def main() -> None:
    """Answers requests for the seconds of a step with so many sequences, or with 0 of a prompt."""
    file, threads, kind = sys.argv[1:]
    quantization = None if kind == "None" else kind
    llm = LLM(file, quantization=quantization, num_threads=int(threads), prefix_caching=False)

    def timed(prompts: list[str], tokens: int) -> float:
        begin = time.perf_counter()
        llm.generate(prompts, max_new_tokens=tokens, min_new_tokens=tokens)
        return time.perf_counter() - begin

    def answer(sequences: int) -> float:
        if not sequences:
            return timed([PROMPT], 1)
        prompts = [f"Water {number} boils at a temperature of" for number in range(sequences)]
        return (timed(prompts, 1 + TOKENS) - timed(prompts, 1)) / TOKENS

    timed(["a"], 2)
    serve(kind, answer)
