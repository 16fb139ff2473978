"""Peak memory of whole batch jobs over more and more rows: it must not grow with them.

    python tools/bench memory
    python tools/bench memory --rows 1000 1000000 --text

Each job is a process of its own: the dataset is surveyed, run, kept in the ledger and written out as in
`mindbatch batch`, over a stub of the model that makes up logits at once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from bench.child_process import Worker
from bench.command_line import parser_of

ALLOWED = 0.05


def main() -> None:
    """Runs the jobs and prints one line for each."""
    options = parse_options()
    print("|      rows | seconds | imported MB | peak MB | against the first |")
    print("|----------:|--------:|------------:|--------:|------------------:|")
    peaks: list[int] = []
    for rows in options.rows:
        with tempfile.TemporaryDirectory() as folder:
            worker = Worker(sys.executable, "batch.memory_job", Path(folder))
            measured = worker.ask(rows=rows, text=options.text, format=options.format)
            worker.close()
        peaks.append(measured["peak_bytes"])
        seconds, base = measured["seconds"], measured["base_bytes"] / 1e6
        figures = f"{seconds:7.1f} | {base:11.1f} | {peaks[-1] / 1e6:7.1f}"
        print(f"| {rows:9,} | {figures} | {peaks[-1] / peaks[0] - 1:17.1%} |", flush=True)
    if max(peaks) > peaks[0] * (1 + ALLOWED):
        raise SystemExit(f"memory grows by more than {ALLOWED:.0%}")


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument(
        "--text", action="store_true", help="prompts are texts; transformers' share comes along"
    )
    parser.add_argument(
        "--format", default="jsonl", choices=("jsonl", "parquet", "csv"), help="of the results"
    )
    return parser.parse_args()
