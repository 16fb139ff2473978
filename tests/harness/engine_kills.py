"""Kills `mindbatch batch` at random moments, and runs it on with other batch sizes.

python engine_kills.py FOLDER [--rows 250] [--kills 15] [--seed 0] [--model FOLDER] [--settings KEY=VALUE ...]
prints what was done; an assertion fails where the results differ from the unbroken run's by a byte. The model
is the shipped one unless another is given; the rows are decoded in turn by several strategies.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson

from mindbatch.cli import main
from mindbatch.io.errors import EXIT_FAILED
from mindbatch.ledger.run_folder import RunFolder

BATCH_SIZES = (1, 4, 32)
FINAL_FILES = ("results.jsonl", "errors.jsonl")
LONGEST_START = 4.0  # seconds: a kill while libraries and model are loaded
LONGEST_WORK = 1.0  # seconds after a commit
POLL = 0.005
SAMPLING = ("decoding.max_new_tokens=60", "decoding.do_sample=true", "decoding.temperature=1.2")
FEW_GRAPHS = ("runtime.max_batched_tokens=32",)
STRATEGIES = (
    {},
    {"do_sample": False, "num_beams": 2},
    {"top_p": 0.9, "num_return_sequences": 2},
    {"do_sample": False},
)


class EngineKills:
    """One dataset, its unbroken run, and lives that are cut short."""

    def __init__(self, folder: Path, rows: int, seed: int, model: str, settings: Sequence[str] = ()) -> None:
        self.num_kills = 0
        self.num_runs = 0
        self._random = random.Random(seed)
        self._folder = folder
        self._settings = (model, *settings)
        self._data = folder / "rows.jsonl"
        self._data.write_bytes(b"".join(map(_line, range(rows))))
        self._unbroken = folder / "unbroken"
        self._finish(self._unbroken, batch_size=8)
        self._expected = [(self._unbroken / name).read_bytes() for name in FINAL_FILES]
        assert all(self._expected), "the data has no good or no bad rows"

    def kill(self, kills: int) -> None:
        """Kills until there were so many; each run is brought to its end."""
        while self.num_kills < kills:
            run = self._folder / f"run{self.num_runs}"
            while self.num_kills < kills and self._dies(run):
                self.num_kills += 1
            self._finish(run, self._random.choice(BATCH_SIZES))
            assert [(run / name).read_bytes() for name in FINAL_FILES] == self._expected, f"{run} differs"
            left = [found.name for found in run.rglob(".*")]
            assert not left, f"left behind: {left}"
            self.num_runs += 1

    def _dies(self, run: Path) -> bool:
        """One life; whether it was cut short: while it starts, or somewhere after it has committed."""
        process = self._start(run, self._random.choice(BATCH_SIZES))
        if self._random.random() < 0.25:
            self._wait(process, self._random.uniform(0, LONGEST_START), lambda: False)
        else:
            before = _ledger_bytes(run)
            self._wait(process, 120, lambda: _ledger_bytes(run) > before)
            self._wait(process, self._random.uniform(0, LONGEST_WORK), lambda: False)
        process.kill()
        return process.wait() < 0

    def _wait(self, process: subprocess.Popen[bytes], seconds: float, reached: Callable[[], bool]) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and process.poll() is None and not reached():
            time.sleep(POLL)

    def _start(self, run: Path, batch_size: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "mindbatch", *self._arguments(run, batch_size)]
        return subprocess.Popen(command, env={**os.environ, "HOME": str(self._folder)})

    def _finish(self, run: Path, batch_size: int) -> None:
        """A run that is let come to its end, in this process."""
        assert main(self._arguments(run, batch_size)) == EXIT_FAILED  # there are bad rows

    def _arguments(self, run: Path, batch_size: int) -> list[str]:
        return [
            *("batch", *self._settings, "progress=none", f"model.batch_size={batch_size}"),
            *(f"data.path={self._data}", "data.key_column=id", f"output.dir={run}"),
            *("data.decoding_column=own", *SAMPLING, *FEW_GRAPHS),
        ]


def _ledger_bytes(run: Path) -> int:
    ledger = RunFolder(run).ledger
    return ledger.stat().st_size if ledger.exists() else 0


def _line(number: int) -> bytes:
    """A row; one in fifty is bad."""
    if number % 50 == 25:
        return b"no row\n"
    prompt, own = f"Count from {number % 9}: one, two,", STRATEGIES[number % len(STRATEGIES)]
    return orjson.dumps({"id": f"row-{number}", "prompt": prompt, "own": own}) + b"\n"


def run() -> None:
    """Runs everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=250)
    parser.add_argument("--kills", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model")
    parser.add_argument("--settings", nargs="*", default=())
    options = parser.parse_args()
    path = options.model
    model = f"model.checkpoint_name_or_path={path}" if path else "model=tiny_gpt2"
    kills = EngineKills(options.folder, options.rows, options.seed, model, options.settings)
    kills.kill(options.kills)
    print(f"{kills.num_kills} kills, {kills.num_runs} runs ended like the unbroken one")


if __name__ == "__main__":
    run()
