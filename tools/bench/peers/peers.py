"""Times batch inference beside other engines, in one run, and prints one table for each model's shapes.

    tools/bench/peers/make_environments.sh ~/peers                # once: environments of the others
    python tools/bench peers --environments ~/peers --shapes gpt2 --output table.md
    python tools/bench peers --peers ours --rows 16 --rounds 1    # a short one

Random weights, one folder for all; greedy, without an end token, prompts are token ids. In every round each
side has a process of its own, one after the other: its first token (from the start of the process), all rows
(whatever a process does once is in them), decoding, prompts, other rows of the same lengths in the process
that is warm now, and its peak memory above its libraries'. Medians over the rounds. A side whose environment
is missing, or that fails, or takes longer than --seconds, is listed with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from bench.command_line import parser_of
from bench.memory_bandwidth import read_bandwidth
from bench.peers.peer import INSTRUCTIONS, Rows
from bench.peers.sides import SIDES, Bench
from bench.peers.table import BYTES, Figures, Machine, bounds, cases_of, float32_flops, page, sizes_of
from bench.random_model import GPT2_124M, SHAPES, write_random
from bench.rows import make_rows
from mindbatch.tasks.doctor import processor, processor_flags

POSITIONS = 2304
"""GPT-2's here: its own 1,024 do not take a prompt of 2,048 tokens."""
GPT2 = GPT2_124M | {"n_positions": POSITIONS}
TINY = GPT2 | {"vocab_size": 4096, "n_embd": 64, "n_layer": 2, "n_head": 4}
CONFIGS = SHAPES | {"gpt2": GPT2, "tiny": TINY}


def measure(bench: Bench, names: list[str], rounds: int, budget: float) -> dict[str, Figures]:
    """All rounds, the sides in turn; none follows a turn that failed, and a peer's time may be used up."""
    results = {name: Figures() for name in names}
    spent = dict.fromkeys(names, 0.0)
    for round_number in range(rounds):
        for name, figures in results.items():
            if figures.reason:
                continue
            if SIDES[name].rival and spent[name] > budget:
                figures.reason = f"its {budget:.0f} s are used up after {round_number} rounds"
                continue
            started = time.perf_counter()
            bench.turn(SIDES[name], figures, round_number)
            spent[name] += time.perf_counter() - started
    return results


def run_shapes(shapes: str, folder: Path, options: argparse.Namespace, machine: Machine) -> str:
    """Writes the model if it is not there, measures all sides, and gives the page."""
    source = folder / shapes / "huggingface"
    if not (source / "config.json").exists():
        source.mkdir(parents=True, exist_ok=True)
        write_random(source, CONFIGS[shapes])
    config = json.loads((source / "config.json").read_text())
    rows = {
        count: [
            [row.to_json() for row in make_rows(count, config["vocab_size"], options.seed, variant)]
            for variant in range(2 * options.rounds)
        ]
        for count in sorted(options.rows)
    }
    bench = Bench(source, rows, options.contexts, options.threads, options.environments, options.seconds)
    names = [name for name in SIDES if any(part in name for part in options.peers)]
    sides = measure(bench, names, options.rounds, options.budget)
    sizes = sizes_of(config, (source / "model.safetensors").stat().st_size)
    floors = {
        f"bound, {kind}": bounds(
            sizes, machine, {count: some[0] for count, some in rows.items()}, options.contexts, kind
        )
        for kind in BYTES
    }
    rivals = {name: side.rival for name, side in SIDES.items() if side.rival is not None}
    lines = page(cases_of(list(rows), options.contexts), sides, floors, rivals)
    return "\n".join([f"{shapes}: {options.rounds} rounds, {describe_rows(rows[min(rows)][0])}", "", *lines])


def describe_rows(rows: Rows) -> str:
    """How many tokens the rows have."""
    prompts = sum(len(row["prompt"]) for row in rows)
    wanted = sum(row["answer_tokens"] for row in rows)
    return f"{len(rows)} rows with {prompts} prompt tokens and {wanted} wanted"


def main() -> None:
    """Runs the benchmark."""
    options = parse_options()
    unknown = [part for part in options.peers if not any(part in name for name in SIDES)]
    if unknown:
        raise SystemExit(
            f"--peers: no side has {' or '.join(map(repr, unknown))} in its name: {', '.join(SIDES)}"
        )
    os.environ[INSTRUCTIONS] = options.instruction_set
    machine = Machine(read_bandwidth(options.threads), float32_flops())
    heading = (
        f"{processor()}, {options.threads} threads, {' '.join(processor_flags())}; ours with "
        f"runtime.instruction_set={options.instruction_set}; load before {os.getloadavg()[0]:.1f}; "
        f"{machine.bandwidth / 1e9:.1f} GB/s read, "
        f"{machine.flops / 1e9:.0f} GFLOP/s in NumPy's float32 product"
    )
    pages = [heading]
    with tempfile.TemporaryDirectory() as name:
        for shapes in options.shapes:
            pages.append(run_shapes(shapes, options.models or Path(name), options, machine))
    text = "\n\n".join(pages)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = parser_of(__doc__, rounds=3, has_threads=True)
    parser.add_argument("--shapes", nargs="+", choices=CONFIGS, default=["gpt2", "qwen2.5"])
    parser.add_argument(
        "--peers", nargs="+", default=[""], help=f"parts of the sides' names: {', '.join(SIDES)}"
    )
    parser.add_argument(
        "--rows", nargs="+", type=int, default=[64], help="counts; 64 256 for the whole table"
    )
    parser.add_argument(
        "--contexts",
        nargs="*",
        type=int,
        default=[],
        help="tokens: one sequence decodes behind so many, and a prompt has so many; 8192 for qwen2.5",
    )
    parser.add_argument(
        "--environments", type=Path, default=Path("peers"), help="made by make_environments.sh"
    )
    parser.add_argument("--models", type=Path, help="where models are kept, converted ones too; else nowhere")
    parser.add_argument("--output", type=Path, help="file for the tables")
    parser.add_argument("--instruction-set", default="auto", help="of ours: see runtime.instruction_set")
    parser.add_argument("--seconds", type=float, default=120, help="the longest turn of a side")
    parser.add_argument("--budget", type=float, default=90, help="seconds after which a peer begins no round")
    parser.add_argument("--seed", type=int, default=0, help="of the rows")
    return parser.parse_args()
