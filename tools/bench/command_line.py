"""Makes the argument parser of a benchmark, with the options that most of them have."""

from __future__ import annotations

import argparse
import os


def parser_of(
    docstring: str | None, *, rounds: int | None = None, has_threads: bool = False
) -> argparse.ArgumentParser:
    """Returns a parser whose help is the benchmark's docstring.

    Args:
        docstring: of the benchmark's module.
        rounds: default of --rounds; None: the benchmark has no rounds.
        has_threads: adds --threads.
    """
    parser = argparse.ArgumentParser(
        description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help="medians of so many; %(default)s")
    if has_threads:
        processors = len(os.sched_getaffinity(0))
        parser.add_argument("--threads", type=int, default=processors, help="by default a processor each")
    return parser
