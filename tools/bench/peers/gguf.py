"""Times a file of llama.cpp here and in llama.cpp itself, in turns, and prints one table.

    python tools/bench gguf --file MODEL.gguf --python ~/llama/bin/python

--python: an interpreter with xllamacpp. One sequence, eight at once, and a prompt of some hundred tokens,
greedy. Eight sequences only here: the binding takes llama.cpp's one at a time.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from bench.child_process import Worker
from bench.command_line import parser_of
from mindbatch.tasks.doctor import processor

KINDS = {"as stored": "auto", "int8": "int8", "float32": None}
CASES = {"one sequence, ms a token": 1, "8 sequences, ms a step": 8, "a prompt, ms": 0}


def main() -> None:
    """Runs the benchmark."""
    parser = parser_of(__doc__, rounds=3, has_threads=True)
    parser.add_argument("--file", required=True, type=Path, help="a .gguf file")
    parser.add_argument("--python", required=True, help="an interpreter with xllamacpp")
    options = parser.parse_args()
    workers = {
        f"ours, {name}": Worker(sys.executable, "peers.gguf_worker", options.file, options.threads, kind)
        for name, kind in KINDS.items()
    }
    workers["llama.cpp"] = Worker(options.python, "peers.xllamacpp_worker", options.file, options.threads)
    print(f"{processor()}, {options.threads} threads; {workers['llama.cpp'].facts}; {options.file.name}\n")
    print(f"| case | {' | '.join(workers)} |\n|---|{'---:|' * len(workers)}")
    for case, sequences in CASES.items():
        seconds: dict[str, list[float]] = {name: [] for name in workers}
        for _ in range(options.rounds):
            for name, worker in workers.items():
                if (answer := worker.ask(sequences=sequences)) is not None:
                    seconds[name].append(answer)
        cells = [f"{statistics.median(values) * 1e3:.1f}" if values else "" for values in seconds.values()]
        print(f"| {case} | {' | '.join(cells)} |", flush=True)
    for worker in workers.values():
        worker.close()
