"""Time and memory of a reshard, against cp and fsync of the same bytes and MindSpore's transform_checkpoints.

    python tools/bench reshard
    python tools/bench reshard --size 0.1 --rounds 1

A Llama checkpoint of random bfloat16 weights, with digests, is cut for several ranks: as safetensors, and
from a .ckpt into .ckpt files, which is what MindSpore does of it by an equal strategy file. All go by turns.
Each starts with as little of the source in the page cache as can be arranged, in processes of its own, and
ends when everything is on the disk. The peak is the highest sum of the resident sizes of all processes.
Exits with 1 above --allowed times the copy, or when MindSpore's .ckpt files are not ours byte for byte.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from bench.command_line import parser_of
from bench.reshard.llama_checkpoint import write_ckpt, write_llama, write_strategy
from bench.reshard.methods import COPY, LIMITED, MINDSPORE, OURS_CKPT, Bench, Measured, differing
from mindbatch.checkpoint.reshard.execution import worker_count


def main() -> None:
    """Measures all ways by turns and prints a table of their medians."""
    options = parse_options()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        bench = prepared(Path(name), options)
        methods = [method for method in bench.methods() if options.mindspore or method != MINDSPORE]
        results: dict[str, list[Measured]] = {method: [] for method in methods}
        errors: list[str] = []
        for number in range(options.rounds):
            for method in methods:
                results[method].append(bench.measured(method))
            if number == 0 and options.mindspore:
                errors = differing(bench.made(OURS_CKPT), bench.made(MINDSPORE))
            bench.clear()
        print_table(results, bench.nbytes)
    copying = median(results[COPY])
    slow = [method for method in LIMITED if median(results[method]) > options.allowed * copying]
    errors += [f"{method}: more than {options.allowed} times the copy" for method in slow]
    if errors:
        raise SystemExit("\n".join(errors))


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--size", type=float, default=2.0, help="of the checkpoint in GB; %(default)s")
    parser.add_argument("--ranks", type=int, default=8, help="ranks; %(default)s")
    parser.add_argument("--workers", type=int, default=worker_count(None, 1 << 40), help="threads")
    parser.add_argument("--allowed", type=float, default=2.0, help="times the copy; %(default)s")
    parser.add_argument("--folder", type=Path, help="where to write; default: that of temporary files")
    parser.add_argument("--no-mindspore", dest="mindspore", action="store_false", help="leave it out")
    return parser.parse_args()


def prepared(folder: Path, options: argparse.Namespace) -> Bench:
    """Writes the checkpoint in both formats."""
    source = folder / "source"
    nbytes = write_llama(source, int(options.size * 1e9))
    ckpt = write_ckpt(source, folder / "ckpt")
    strategy = write_strategy(source, folder / "strategy.ckpt", options.methods)
    print(f"{nbytes / 1e9:.2f} GB of bfloat16, {options.methods} ranks, {options.workers} threads")
    print(f"{options.rounds} rounds by turns, medians, the lowest and highest in brackets", flush=True)
    return Bench(folder, source, ckpt, strategy, nbytes, options.methods, options.workers)


def print_table(results: dict[str, list[Measured]], nbytes: int) -> None:
    """A row for each way."""
    copying = median(results[COPY])
    print("| way | seconds | MB/s | times the copy | peak MB |")
    print("|-----|--------:|-----:|---------------:|--------:|")
    for method, all_measured in results.items():
        seconds = [measured.seconds for measured in all_measured]
        middle = statistics.median(seconds)
        peaks = [measured.peak for measured in all_measured if measured.peak is not None]
        peak = f"{max(peaks) / 1e6:.0f}" if peaks else "-"
        spread = f"{middle:.2f} ({min(seconds):.2f}-{max(seconds):.2f})"
        print(f"| {method} | {spread} | {nbytes / middle / 1e6:.0f} | {middle / copying:.2f} | {peak} |")
    every = [measured for all_measured in results.values() for measured in all_measured]
    inner = [measured.inner for measured in every if measured.inner is not None]
    if inner:
        calling = statistics.median(inner)
        print(f"MindSpore's call alone, neither started nor synced: {calling:.2f} s, {calling / copying:.2f}")


def median(all_measured: list[Measured]) -> float:
    """Returns the median of the seconds."""
    return statistics.median(measured.seconds for measured in all_measured)
