"""Times speculative decoding beside plain decoding: with an assistant model, and by prompt lookup.

    python examples/training/make_speculation_pair.py --output /tmp/pair/large      (with torch; ten minutes)
    python tools/bench speculation /tmp/pair/large examples/tiny_gpt2

One engine holds both models and serves all cases, taken in turn for several rounds; medians are shown. A case
is whole requests, from the prompt to the last token. Drafted tokens must not change greedy output: the
benchmark fails if they do.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.command_line import parser_of
from mindbatch import DecodingParams
from mindbatch.config.environment import prepare_environment
from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.engine.engine import Engine
from mindbatch.engine.request import Request, RequestOutput
from mindbatch.loading.build import load_engine
from mindbatch.loading.setup import prepare
from mindbatch.tasks.doctor import processor

TARGET = 1.3
BATCHES = (1, 8)
PROMPTS = (  # beginnings of what the shipped model and its larger pair have learned
    "An increasing sequence: zero,",
    "An increasing sequence: fifty,",
    "A decreasing sequence: fifty,",
    "A decreasing sequence: one hundred,",
    "Even numbers: zero,",
    "Odd numbers: one,",
    "Counting by fives: zero,",
    "Counting by tens: zero,",
)
METHODS: dict[str, dict[str, Any]] = {"greedy": {}, "sampling": {"do_sample": True, "seed": 1}}


@dataclass
class Measured:
    """The sums of one side in one case, over all rounds; seconds: of each round after the first."""

    seconds: list[float] = field(default_factory=list)
    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    outputs: list[list[int]] = field(default_factory=list)


def main() -> None:
    """Runs the benchmark and prints a table."""
    options = parse_options()
    prepare_environment(num_threads=options.threads)
    # Every round has the same prompts: nothing of them is to be found in the cache.
    runtime = RuntimeConfig(cache_memory="512MiB", num_threads=options.threads, prefix_caching=False)
    model = ModelConfig(
        checkpoint_name_or_path=str(options.model), assistant=str(options.assistant), batch_size=max(BATCHES)
    )
    loaded = load_engine(prepare(model, runtime))
    assert loaded.tokenizer is not None
    prompts = [tuple(loaded.tokenizer.encode(prompt)) for prompt in PROMPTS]
    sides: dict[str, dict[str, Any]] = {
        "plain": {},
        "assistant": {"num_assistant_tokens": options.assistant_tokens},
        "prompt lookup": {"prompt_lookup_num_tokens": options.lookup_tokens},
    }
    pairs = itertools.product(METHODS, BATCHES)
    cases = {pair: {side: Measured() for side in sides} for pair in pairs}
    for round_index in range(options.rounds + 1):
        for (method, batch), measured in cases.items():
            for side, chosen in sides.items():
                params = DecodingParams(max_new_tokens=options.tokens, **METHODS[method], **chosen)
                measure(loaded.engine, prompts, batch, params, measured[side], round_index > 0)
    print(f"{processor()}, {options.threads} threads; {options.model} with {options.assistant}")
    print(
        f"{len(prompts)} prompts, at most {options.tokens} new tokens; drafts of {options.assistant_tokens} "
        f"(assistant) and {options.lookup_tokens} (prompt lookup); medians of {options.rounds} rounds"
    )
    print_table(cases)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = parser_of(__doc__, rounds=5, has_threads=True)
    parser.add_argument("model", type=Path, help="folder of the large model")
    parser.add_argument("assistant", type=Path, help="folder of the small one")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens of a request (%(default)s)")
    parser.add_argument("--assistant-tokens", type=int, default=5, help="of a draft (%(default)s)")
    parser.add_argument("--lookup-tokens", type=int, default=3, help="of a draft (%(default)s)")
    return parser.parse_args()


def measure(
    engine: Engine,
    prompts: list[tuple[int, ...]],
    batch: int,
    params: DecodingParams,
    measured: Measured,
    counts: bool,
) -> None:
    """Runs all prompts, `batch` of them at a time; the first round, which compiles graphs, does not count."""
    steps, results = engine.statistics.steps, list[RequestOutput]()
    started = time.perf_counter()
    for first in range(0, len(prompts), batch):
        for index, prompt in enumerate(prompts[first : first + batch], start=first):
            engine.add(Request(str(index), prompt, params))
        while engine.has_work:
            results += engine.step().finished
    seconds = time.perf_counter() - started
    if not counts:
        return
    outputs = [result.outputs[0] for result in sorted(results, key=lambda result: int(result.key))]
    measured.seconds.append(seconds)
    measured.steps += engine.statistics.steps - steps
    measured.outputs = [output.token_ids for output in outputs]
    measured.tokens += sum(map(len, measured.outputs))
    measured.drafted += sum(output.num_drafted_tokens for output in outputs)
    measured.accepted += sum(output.num_accepted_tokens for output in outputs)


def print_table(cases: dict[tuple[str, int], dict[str, Measured]]) -> None:
    """A row for each case and side. Raises SystemExit when greedy outputs differ."""
    print("| case              | side          | tokens/s | ratio | accepted | tokens a step | ms a step |")
    print("|:------------------|:--------------|---------:|------:|---------:|--------------:|----------:|")
    errors = []
    for (method, batch), sides in cases.items():
        speeds = {side: speed(measured) for side, measured in sides.items()}
        for side, measured in sides.items():
            accepted = f"{measured.accepted / measured.drafted:.1%}" if measured.drafted else "-"
            step = sum(measured.seconds) / measured.steps * 1e3
            figures = f"{speeds[side]:8.0f} | {speeds[side] / speeds['plain']:5.2f} | {accepted:>8}"
            per_step = f"{measured.tokens / measured.steps / batch:13.2f} | {step:9.2f}"
            print(f"| {f'{method}, batch {batch}':<17} | {side:<13} | {figures} | {per_step} |")
            if method == "greedy" and measured.outputs != sides["plain"].outputs:
                errors.append(f"{method}, batch {batch}: {side} has another output than plain decoding")
    ratio = speed(cases["greedy", 1]["assistant"]) / speed(cases["greedy", 1]["plain"])
    print(f"greedy, batch 1, assistant: {ratio:.2f} x plain; target {TARGET}")
    if errors:
        raise SystemExit("\n".join(errors))


def speed(measured: Measured) -> float:
    """Tokens per second of the median round."""
    return measured.tokens / len(measured.seconds) / statistics.median(measured.seconds)
