"""Times the scoring of answers to choose from: each context computed once, beside whole prompts.

python tools/bench choices [--questions 8] [--examples 5] [--rounds 3]
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bench.command_line import parser_of
from bench.random_model import GPT2_124M, write_random
from mindbatch import LLM

EXAMPLE, CHOICES, CHOICE = 60, 4, 6
"""Tokens of a question, with or without its solution; choices; tokens of one."""

Scores = list[list[dict[int, float] | None]]


def prompts_of(questions: int, examples: int, seed: int) -> list[list[int]]:
    """Each question after the same solved examples, with each of its choices after it."""
    generator = np.random.default_rng(seed)

    def tokens(count: int) -> list[int]:
        return [int(token) for token in generator.integers(1, GPT2_124M["vocab_size"], count)]

    solved = tokens(examples * EXAMPLE)
    contexts = [solved + tokens(EXAMPLE) for _ in range(questions)]
    return [context + tokens(CHOICE) for context in contexts for _ in range(CHOICES)]


def scored(llm: LLM, prompts: list[list[int]], start: int) -> tuple[float, Scores]:
    """Seconds, and the log-probabilities of each choice's tokens."""
    before = time.perf_counter()
    results = llm.generate(prompts, max_new_tokens=1, prompt_logprobs=0, prompt_logprobs_start=start)
    seconds = time.perf_counter() - before
    return seconds, [(result.prompt_logprobs or [])[-CHOICE:] for result in results]


def main() -> None:
    """Prints the seconds of both ways and how far their scores are apart."""
    parser = parser_of(__doc__, rounds=3)
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--examples", type=int, default=5)
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        write_random(Path(folder))
        with LLM(folder, batch_size=32) as llm:
            rounds = []
            for seed in range(args.rounds + 1):  # the first compiles
                prompts = prompts_of(args.questions, args.examples, seed)
                context = len(prompts[0]) - CHOICE
                # Choices first: what whole prompts leave in the cache would be found.
                cached, uncached = scored(llm, prompts, context)
                whole, expected = scored(llm, prompts, 0)
                apart = max(
                    abs(one[token] - other[token])
                    for row, expected_row in zip(uncached, expected, strict=True)
                    for one, other in zip(row, expected_row, strict=True)
                    if one is not None and other is not None
                    for token in one
                )
                rounds.append((whole, cached, apart))
    whole, cached, apart = (statistics.median(column) for column in zip(*rounds[1:], strict=True))
    print(f"{args.questions} questions of {context} tokens, {CHOICES} choices of {CHOICE}: whole prompts")
    print(f"{whole:.2f} s, contexts from the cache {cached:.2f} s: {whole / cached:.1f}x; apart {apart:.1e}")
