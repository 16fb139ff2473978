"""Times decoding with many adapters beside the base alone, and PEFT beside both, and prints one table.

    python tools/bench lora                        # PEFT in this environment, if installed
    python tools/bench lora --peft-python ~/peft-env/bin/python

GPT-2 124M shapes with random float32 weights; random adapters of every linear layer. Each side is a process
of its own. Of each case the base alone and the adapters take turns, step by step, and medians are shown.
PEFT computes a mixed batch (adapter_names=), or switches adapters and splits the batch.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from bench.child_process import Worker, has_modules
from bench.command_line import parser_of
from bench.random_model import GPT2_124M, write_random
from mindbatch.tasks.doctor import processor

CASES = {"4 adapters, 32 rows": (32, 4, 0.85), "64 adapters, 256 rows": (256, 64, 0.7)}
"""Rows, adapters among them, and the speed that is wanted, as a part of the base's."""
MAX_LOAD_MS = 50
PEFT_CASE = "4 adapters, 32 rows"


def write_adapters(folder: Path, count: int, rank: int) -> None:
    """PEFT folders 0, 1, ... in a folder; every linear layer of GPT-2 has a pair of matrices."""
    width = GPT2_124M["n_embd"]
    layers = {"attn.c_attn": (1, 3), "attn.c_proj": (1, 1), "mlp.c_fc": (1, 4), "mlp.c_proj": (4, 1)}
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank}
    settings |= {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}
    for number in range(count):
        chance, tensors = np.random.default_rng(number), {}
        for layer in range(GPT2_124M["n_layer"]):
            for name, (inputs, outputs) in layers.items():
                module = f"base_model.model.transformer.h.{layer}.{name}"
                sizes = {"A": (rank, inputs * width), "B": (outputs * width, rank)}
                for which, size in sizes.items():
                    values = chance.standard_normal(size, np.float32) * np.float32(0.02)
                    tensors[f"{module}.lora_{which}.weight"] = values
        home = folder / str(number)
        home.mkdir(parents=True)
        (home / "adapter_config.json").write_text(json.dumps(settings))
        save_file(tensors, home / "adapter_model.safetensors", {"format": "pt"})


def print_row(case: str, base: float, adapted: float, wanted: float | None = None) -> None:
    """Milliseconds of a step, and the speed with adapters as a part of that without."""
    target = "-" if wanted is None else f"{wanted:.2f}"
    print(
        f"| {case:<38} | {base * 1e3:8.1f} | {adapted * 1e3:11.1f} | {base / adapted:5.2f} | {target:>6} |",
        flush=True,
    )


def main() -> None:
    """Runs the benchmark."""
    parser = parser_of(__doc__, has_threads=True)
    parser.add_argument("--peft-python", default=sys.executable, help="an interpreter with torch and peft")
    parser.add_argument("--folder", help="a folder that is there, in which model and adapters are kept")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(options.folder or name)
        if not (folder / "adapters").exists():
            write_random(folder)
            write_adapters(folder / "adapters", max(count for _, count, _ in CASES.values()), options.rank)
        ours = Worker(sys.executable, "lora.our_worker", folder, options.threads)
        print(f"{processor()}, {options.threads} threads; {ours.facts}; rank {options.rank}")
        print(f"| {'case':<38} |  base ms | adapters ms | speed | wanted |")
        print(f"|{'-' * 40}|---------:|------------:|------:|-------:|")
        for case, (rows, adapters, wanted) in CASES.items():
            base, adapted = ours.ask(rows=rows, adapters=adapters, steps=options.steps)
            print_row(case, base, adapted, wanted)
        load = ours.ask(loads=5)
        ours.close()
        if has_modules(options.peft_python, "torch", "transformers", "peft"):
            print_peft(options.peft_python, folder, options.threads, options.steps)
        else:
            print("peft is not installed: it is left out (see --peft-python)")
        print(f"loading an adapter: {load * 1e3:.1f} ms (wanted: under {MAX_LOAD_MS})")


def print_peft(python: str, folder: Path, threads: int, steps: int) -> None:
    """The first case as PEFT computes it, in two ways."""
    rows, adapters, _ = CASES[PEFT_CASE]
    theirs = Worker(python, "lora.peft_worker", folder, threads, adapters)
    answer = theirs.ask(rows=rows, steps=steps)
    print_row(f"PEFT, {PEFT_CASE}, mixed", answer["base"], answer["mixed"])
    print_row(f"PEFT, {PEFT_CASE}, switched", answer["base"], answer["switched"])
    print(theirs.facts)
    theirs.close()
