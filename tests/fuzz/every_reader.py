"""Every reader over changed files: it reads, or refuses in the project's words, in bounded time and memory.

python every_reader.py READER... [--cases 300] [--seed 0] [--kept FOLDER]: prints what it has done, or a line
for each fault with the file that makes it happen again, and exits 1. Without a reader all are run.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from tempfile import mkdtemp

os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")

from fuzz.cases import run_reader
from fuzz.checkpoint_readers import READERS as CHECKPOINTS
from fuzz.command_readers import READERS as COMMANDS
from fuzz.job_readers import READERS as JOBS
from fuzz.planted_readers import READERS as PLANTED
from fuzz.run_readers import READERS as RUNS

READERS = {reader.name: reader for reader in (*CHECKPOINTS, *RUNS, *COMMANDS, *JOBS)}
ALL = {**READERS, **{reader.name: reader for reader in PLANTED}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("readers", nargs="*", choices=[[], *ALL])
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kept", type=Path)
    arguments = parser.parse_args()
    kept = arguments.kept or Path(mkdtemp(prefix="mindbatch-fuzz-"))
    total, faults = 0, []
    for name in arguments.readers or READERS:
        count = arguments.cases * ALL[name].share // 100
        total += count
        faults += run_reader(ALL[name], range(arguments.seed, arguments.seed + count), kept)
    print("\n".join(faults) if faults else f"{total} cases of {len(arguments.readers or READERS)} readers")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
