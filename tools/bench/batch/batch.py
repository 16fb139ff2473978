"""Times a batch job beside transformers on torch, in one run: prompts and answers of mixed lengths.

    python tools/bench batch                        # torch in this environment, if installed
    python tools/bench batch --torch-python ~/torch-env/bin/python

GPT-2 124M shapes with random float32 weights; both sides load the same folder and generate greedily, with no
end token. Ours takes the rows in the order given and ends each at its own length; transformers takes them in
batches of 16 sorted by the length of the prompt, padded on the left, each until its longest answer is there.
Only tokens that a row wanted are counted. The sides take turns, batch by batch, and each one's clock stands
while the other works; what a process does once (compiling, warming up) is in the first round alone, which is
shown apart from the median of the others.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.child_process import Worker, has_modules
from bench.command_line import parser_of
from bench.random_model import GPT2_124M, write_random
from bench.rows import BenchRow, make_rows, sorted_batches
from mindbatch.tasks.doctor import processor

THEIR_BATCH = 16
TARGET = 2.5


@dataclass
class Round:
    """The seconds of one pass over the rows, and the answers of each side.

    facts: further measurements of our side.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    answers: dict[str, list[list[int]]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


def run_round(workers: dict[str, Worker], rows: list[BenchRow]) -> Round:
    """All rows through each side: a batch of theirs, then as many tokens of ours, and so on."""
    result = Round()
    batches = sorted_batches([len(row.prompt) for row in rows], THEIR_BATCH)
    wanted = sum(row.answer_tokens for row in rows)
    ours, theirs = workers["ours"], workers.get("transformers")
    ours.ask(rows=[row.to_json() for row in rows])
    if theirs is not None:
        result.seconds["transformers"], result.answers["transformers"] = 0.0, [[] for _ in rows]
        for number, indices in enumerate(batches, 1):
            run_padded(theirs, rows, indices, result)
            ours.ask(advance=wanted * number // len(batches))
    result.facts = ours.ask(advance=None)
    result.seconds["ours"], result.answers["ours"] = (
        sum(result.facts["seconds"].values()),
        result.facts["answers"],
    )
    return result


def run_padded(worker: Worker, rows: list[BenchRow], indices: list[int], result: Round) -> None:
    """One batch of transformers; each row's answer is cut to what was wanted."""
    longest = max(rows[index].answer_tokens for index in indices)
    answer = worker.ask(prompts=[rows[index].prompt for index in indices], new_tokens=longest)
    result.seconds["transformers"] += answer["seconds"]
    for index, tokens in zip(indices, answer["answers"], strict=True):
        result.answers["transformers"][index] = tokens[: rows[index].answer_tokens]


def padding_shares(rows: list[BenchRow], size: int) -> dict[str, float]:
    """Returns the shares of padding in what sorted, padded batches compute."""
    prompts = answers = 0
    for indices in sorted_batches([len(row.prompt) for row in rows], size):
        prompts += len(indices) * max(len(rows[index].prompt) for index in indices)
        answers += len(indices) * max(rows[index].answer_tokens for index in indices)
    wanted_prompts = sum(len(row.prompt) for row in rows)
    wanted_answers = sum(row.answer_tokens for row in rows)
    return {
        "prompt tokens": 1 - wanted_prompts / prompts,
        "generated tokens": 1 - wanted_answers / answers,
        "all tokens": 1 - (wanted_prompts + wanted_answers) / (prompts + answers),
    }


def same_answers(result: Round) -> str:
    """How many rows both sides answered with the same tokens: they do the same work."""
    ours, theirs = result.answers["ours"], result.answers["transformers"]
    return f"{sum(one == other for one, other in zip(ours, theirs, strict=True))} of {len(ours)}"


def print_table(rounds: Sequence[Round], wanted: int) -> None:
    """One line per side: seconds and wanted tokens per second."""
    print("| side         | first round s | median s | generated tokens/s | slowest and fastest round |")
    print("|--------------|--------------:|---------:|-------------------:|--------------------------:|")
    for side in rounds[0].seconds:
        first, *others = (result.seconds[side] for result in rounds)
        times = others or [first]
        middle = statistics.median(times)
        span = f"{wanted / max(times):.0f} to {wanted / min(times):.0f}"
        print(f"| {side:<12} | {first:13.1f} | {middle:8.1f} | {wanted / middle:18.1f} | {span:>25} |")


def print_report(rounds: Sequence[Round], rows: list[BenchRow]) -> None:
    """The table, the ratio, and what each side wasted."""
    wanted = sum(row.answer_tokens for row in rows)
    prompt_tokens = sum(len(row.prompt) for row in rows)
    print(f"{len(rows)} rows: {prompt_tokens} prompt tokens, {wanted} generated tokens wanted")
    print_table(rounds, wanted)
    if "transformers" in rounds[0].seconds:
        ratios = [result.seconds["transformers"] / result.seconds["ours"] for result in rounds]
        ratio = statistics.median(ratios[1:] or ratios)
        print(f"ratio {ratio:.2f} (target {TARGET:.2f}; first round, with all compiling, {ratios[0]:.2f})")
        shares = padding_shares(rows, THEIR_BATCH)
        print(
            "padding that transformers computed: " + ", ".join(f"{s:.1%} of {n}" for n, s in shares.items())
        )
        print(f"rows with the same tokens on both sides: {same_answers(rounds[-1])}")
    print_own_facts(rounds)


def print_own_facts(rounds: Sequence[Round]) -> None:
    """Prints the parts of our time, and the empty share of the cache."""
    parts: list[dict[str, float]] = [result.facts["seconds"] for result in rounds[1:] or rounds]
    middles = {name: statistics.median(part[name] for part in parts) for name in parts[0]}
    print(
        "ours: steps that compute prompts "
        f"{middles['prompts']:.1f} s, steps that only decode {middles['decoding']:.1f} s"
    )
    facts = rounds[-1].facts
    print(
        f"cache waste {facts['cache_waste']:.1%} of the slots in use; "
        f"{facts['prefix_hit_rate']:.1%} of the prompt tokens were cached"
    )


def main() -> None:
    """Runs the benchmark."""
    options = parse_options()
    variants = [
        make_rows(options.prompts, GPT2_124M["vocab_size"], options.seed, number)
        for number in range(options.rounds + 1)
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_random(folder)
        common = (folder, options.threads)
        workers = {
            "ours": Worker(
                sys.executable,
                "batch.our_worker",
                *common,
                options.batch_size,
                options.cache_memory,
                options.block_size,
            )
        }
        if has_modules(options.torch_python, "torch", "transformers"):
            workers["transformers"] = Worker(options.torch_python, "batch.transformers_worker", *common)
        else:
            print("torch is not installed: transformers is left out (see --torch-python)")
        rounds = [run_round(workers, rows) for rows in variants]
        print(
            f"{processor()}, {options.threads} threads; {'; '.join(str(w.facts) for w in workers.values())}"
        )
        print(
            f"GPT-2 124M shapes, float32; ours: batch_size={options.batch_size}, "
            f"cache_memory={options.cache_memory}, block_size={options.block_size}; "
            f"transformers: batches of {THEIR_BATCH}, sorted by length"
        )
        print_report(rounds, variants[-1])
        for worker in workers.values():
            worker.close()


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = parser_of(__doc__, rounds=3, has_threads=True)
    parser.add_argument(
        "--torch-python", default=sys.executable, help="an interpreter with torch and transformers"
    )
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=32, help="of ours: sequences that run together")
    parser.add_argument("--cache-memory", default="1GiB", help="of ours")
    parser.add_argument("--block-size", type=int, default=8, help="of ours: tokens in a block of the cache")
    parser.add_argument("--seed", type=int, default=0, help="of the rows")
    return parser.parse_args()
