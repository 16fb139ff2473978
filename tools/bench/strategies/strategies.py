"""Times each decoding strategy's own work in a step, on the host and without a model, and prints a table.

    python tools/bench strategies
    python tools/bench strategies --check      # exit code 1 if a target is missed
    python tools/bench strategies --vocabulary 151936     # Qwen2.5's, which has no targets

A step has 32 rows of logits over GPT-2's vocabulary of 50,257, for which the targets are, or over another's
(searches: 8 prompts of 4 rows; speculation: 32 rows with 4 drafted tokens each, 160 rows of logits). Every
case is timed with logits that are peaked as a language model's are, which the targets mean, and with flat
ones, the worst for top_p: it then keeps 60% of the tokens of each row. Medians of the rounds count.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from bench.command_line import parser_of
from bench.strategies.made_up_steps import Batch, Logits, flat_logits, peaked_logits, summary_of
from mindbatch.decoding import DecodingParams
from mindbatch.decoding.registry import strategies, strategy_for
from mindbatch.tasks.doctor import processor

ROWS, WARM_UP, VOCABULARY = 32, 4, 50_257
GREEDY, FILTERED, BEAMS = 3.0, 8.0, 10.0
"""Targets in milliseconds on two cores."""


@dataclass(frozen=True)
class Case:
    """Decoding parameters; how many requests use them in a step; the target in milliseconds, if any."""

    name: str
    decoding: dict[str, Any] = field(default_factory=dict)
    target: float | None = None
    requests: int = ROWS

    @property
    def params(self) -> DecodingParams:
        """The parameters of every request of the case."""
        return DecodingParams(max_new_tokens=100_000, **self.decoding)


def sampled(name: str, target: float | None = None, **filters: Any) -> Case:
    """A case of plain sampling with some filters."""
    return Case(name, {"do_sample": True, **filters}, target)


def searched(name: str, target: float | None = None, **decoding: Any) -> Case:
    """A case of 8 prompts with 4 rows each."""
    return Case(name, decoding, target, requests=8)


CASES = [
    Case("greedy", {}, GREEDY),
    Case("greedy, logprobs=5", {"logprobs": 5}),
    Case("greedy, repetition_penalty", {"repetition_penalty": 1.2}),
    Case("greedy, no_repeat_ngram_size=3", {"no_repeat_ngram_size": 3}),
    Case("greedy, four processors", {
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
        "bad_words_ids": [[5], [6, 7]],
        "min_new_tokens": 90_000,
    }),
    sampled("sampling"),
    sampled("temperature", temperature=0.8),
    sampled("top_k=50", FILTERED, top_k=50),
    sampled("top_p=0.9", FILTERED, top_p=0.9),
    sampled("top_p=0.99", FILTERED, top_p=0.99),
    sampled("top_k=50, top_p=0.9", FILTERED, top_k=50, top_p=0.9),
    sampled("temperature, top_k=50, top_p=0.9", FILTERED, temperature=0.8, top_k=50, top_p=0.9),
    sampled("min_p=0.05", min_p=0.05),
    sampled("typical_p=0.9", typical_p=0.9),
    sampled("epsilon_cutoff=3e-4", epsilon_cutoff=3e-4),
    sampled("eta_cutoff=3e-4", eta_cutoff=3e-4),
    sampled("top_h=0.5", top_h=0.5),
    sampled("top_n_sigma=1", top_n_sigma=1),
    searched("4 beams", BEAMS, num_beams=4),
    searched("4 beams, no_repeat_ngram_size=2", num_beams=4, no_repeat_ngram_size=2),
    searched("4 beams, sampled, top_k=50", num_beams=4, do_sample=True, top_k=50),
    searched("4 beams in 2 groups", num_beams=4, num_beam_groups=2, diversity_penalty=0.5),
    searched("contrastive, top_k=4", penalty_alpha=0.6, top_k=4),
    searched("sample and rank, best_of=4", do_sample=True, best_of=4, top_p=0.9),
    Case("speculative", {"num_assistant_tokens": 4}),
    Case("speculative, sampled, top_k=50", {"num_assistant_tokens": 4, "do_sample": True, "top_k": 50}),
]  # fmt: skip


def measure(
    case: Case, pool: Logits, summaries: Logits, rounds: int, clock: Callable[[], float]
) -> list[float]:
    """Milliseconds of each round."""
    batch = Batch(case.params, case.requests, pool, summaries, case.params.num_assistant_tokens, clock)
    for _ in range(WARM_UP):
        batch.step()
    return [1e3 * batch.step() for _ in range(rounds)]


def print_row(case: Case, times: dict[str, list[float]]) -> bool:
    """One line of the table; returns whether the target is met."""
    medians = ((statistics.median(samples), min(samples)) for samples in times.values())
    figures = " | ".join(f"{median:7.2f} {least:7.2f}" for median, least in medians)
    met = case.target is None or statistics.median(times["peaked"]) < case.target
    target = "" if case.target is None else f"< {case.target:.0f}"
    print(f"| {case.name:<32} | {figures} | {target:>6} |{'' if met else ' missed'}", flush=True)
    return met


def main() -> int:
    """Runs the benchmark."""
    parser = parser_of(__doc__, rounds=41)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY, help="logits of each row")
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--check", action="store_true", help="exit with code 1 if a target is missed")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="count the thread's processor time, on a machine that is busy",
    )
    options = parser.parse_args()
    if options.check and options.vocabulary != VOCABULARY:
        parser.error(f"--check: targets are for a vocabulary of {VOCABULARY}, not of {options.vocabulary}")
    clock = time.thread_time if options.processor_time else time.perf_counter
    size = options.vocabulary
    pools = {"peaked": peaked_logits(8 * ROWS, size, 1), "flat": flat_logits(8 * ROWS, size, 2)}
    summaries = {name: summary_of(pool) for name, pool in pools.items()}
    print(f"{processor()}, {os.cpu_count()} processors; vocabulary {size:,}")
    print(f"milliseconds of a step, {options.rounds} rounds")
    print(f"| {'case':<32} | peaked: median, best | flat: median, best | target |")
    print(f"|{'-' * 34}|----------------:|----------------:|-------:|")
    met = True
    for case in CASES:
        if options.only in case.name:
            times = {
                name: measure(case, pool, summaries[name], options.rounds, clock)
                for name, pool in pools.items()
            }
            shown = case if size == VOCABULARY else replace(case, target=None)
            met = print_row(shown, times) and met
    unused = {*strategies().values()} - {strategy_for(case.params) for case in CASES}
    if unused:
        names = sorted(type(strategy).__name__ for strategy in unused)
        print(f"registered, but without a case here: {', '.join(names)}")
    return 1 if options.check and not met else 0
