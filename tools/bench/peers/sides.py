"""The engines that the peers benchmark compares, and one round of one of them."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.child_process import Worker, command
from bench.decode.decode import CONTEXT
from bench.peers.peer import Rows
from bench.peers.table import (
    DECODE,
    FIRST,
    MEMORY,
    PREFILL,
    Figures,
    context_case,
    decode_case,
    prefill_case,
    rows_case,
)

STEPS = {1: 12, 8: 8, 32: 6}
CONVERSION_SECONDS = 600
TOUCHED_BYTES = 3 << 30
FIRST_ROW = {"prompt": list(range(16)), "answer_tokens": 1}


@dataclass(frozen=True)
class Side:
    """One engine with one type of weights.

    module: runs it, a module of this package.
    kind: the type of its weights, in the engine's own word.
    family: the environment that it needs; None: this one.
    folder: the converted folder that it reads; None: the Hugging Face folder.
    rival: our side that it is compared with; None for our sides.
    """

    module: str
    kind: str
    family: str | None = None
    folder: str | None = None
    rival: str | None = None


def _openvino(kind: str, folder: str, rival: str) -> Side:
    return Side("peers.openvino_side", kind, "openvino", folder, rival)


def _transformers(kind: str) -> Side:
    return Side("peers.transformers_side", kind, "transformers", rival=f"ours {kind}")


SIDES = {
    **{f"ours {kind}": Side("peers.our_side", kind) for kind in ("float32", "bfloat16", "int8")},
    "ours float32, half cache": Side("peers.our_side", "float32, half cache"),
    "openvino float32": _openvino("float32", "openvino", "ours float32"),
    "openvino float32, half cache": _openvino("float32, half cache", "openvino", "ours float32, half cache"),
    "openvino default": _openvino("default", "openvino", "ours bfloat16"),
    "openvino int8": _openvino("int8", "openvino_int8", "ours int8"),
    "ctranslate2 int8": Side(
        "peers.ctranslate2_side", "int8", "transformers", "ctranslate2_int8", "ours int8"
    ),
    "llama.cpp float32": Side("peers.llamacpp_side", "float32", "llamacpp", "llamacpp", "ours float32"),
    "llama.cpp int8": Side("peers.llamacpp_side", "int8", "llamacpp", "llamacpp_int8", "ours int8"),
    "transformers float32": _transformers("float32"),
    "transformers bfloat16": _transformers("bfloat16"),
}


def touch_memory() -> None:
    """Writes to as much memory as any side takes, on huge pages, and gives it back.

    A virtual machine's host provides pages late: the first side after a pause would wait for all of them.
    """
    subprocess.run([sys.executable, "-c", f"import numpy; numpy.ones({TOUCHED_BYTES // 8})"], check=True)


@dataclass(frozen=True)
class Bench:
    """One model's shapes, and how they are run.

    folder: of Hugging Face; converted ones are written beside it.
    rows: by count, those of each variant. contexts: tokens of long ones.
    seconds: after which a turn is ended.
    """

    folder: Path
    rows: dict[int, list[Rows]]
    contexts: Sequence[int]
    threads: int
    environments: Path
    seconds: float

    def turn(self, side: Side, figures: Figures, round_number: int) -> None:
        """One round of one side, in a new process; figures.reason says why it did not come to its end."""
        with tempfile.TemporaryFile("w+") as errors:
            try:
                folder = self._converted(side, errors)
                touch_memory()
                self._measure(side, folder, figures, round_number, errors)
            except (SystemExit, subprocess.SubprocessError) as error:
                errors.seek(0)
                lines = [line.strip() for line in errors if line.strip()]
                figures.reason = f"{error}; {lines[-1]}" if lines else str(error)

    def _measure(
        self, side: Side, folder: Path, figures: Figures, round_number: int, errors: IO[str]
    ) -> None:
        started = time.perf_counter()
        arguments = ("serve", folder, side.kind, self.threads)
        worker = Worker(str(self._python(side)), side.module, *arguments, errors=errors, seconds=self.seconds)
        worker.ask(case="rows", rows=[FIRST_ROW])
        figures.note(FIRST, time.perf_counter() - started)
        figures.facts = worker.facts
        first, variant = min(self.rows), 2 * round_number
        answers = self._rows(worker, figures, first, variant, "fresh")
        figures.answers = figures.answers or answers
        self._steps(worker, figures)
        for count in self.rows:
            self._rows(worker, figures, count, variant + 1, "warm")
        figures.note(MEMORY, worker.ask(case="memory") / 1e6)
        worker.close()

    def _rows(
        self, worker: Worker, figures: Figures, count: int, variant: int, state: str
    ) -> list[list[int]]:
        measured = worker.ask(case="rows", rows=self.rows[count][variant])
        figures.note(rows_case(count, state), measured["seconds"])
        answers: list[list[int]] = measured["answers"]
        return answers

    def _steps(self, worker: Worker, figures: Figures) -> None:
        for batch in DECODE:
            measured = worker.ask(case="decode", batch=batch, context=CONTEXT, steps=STEPS[batch])
            figures.note(decode_case(batch), statistics.median(measured) * 1e3)
        for tokens in self.contexts:
            measured = worker.ask(case="decode", batch=1, context=tokens, steps=STEPS[1])
            figures.note(context_case(tokens), statistics.median(measured) * 1e3)
        for tokens in (*PREFILL, *self.contexts):
            measured = worker.ask(case="prefill", tokens=tokens, times=2)
            figures.note(prefill_case(tokens), min(measured) * 1e3)

    def _python(self, side: Side) -> Path:
        if side.family is None:
            return Path(sys.executable)
        python = self.environments / side.family / "bin/python"
        if not python.exists():
            raise SystemExit(f"no environment {python.parents[1]} (see make_environments.sh)")
        return python

    def _converted(self, side: Side, errors: IO[str]) -> Path:
        """The folder that a side reads, made now if it is not there."""
        python = self._python(side)
        if side.folder is None:
            return self.folder
        target = self.folder.with_name(side.folder)
        if not target.exists():
            unfinished = target.with_name(f"{side.folder}.unfinished")
            subprocess.run(
                command(python, side.module, "convert", self.folder, unfinished, side.kind),
                check=True,
                stdout=errors,
                stderr=errors,
                timeout=CONVERSION_SECONDS,
            )
            unfinished.rename(target)
        return target
