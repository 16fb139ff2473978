"""Batch runs of one dataset whose results must have the same bytes, whatever computes them.

python same_bytes.py FOLDER [--cases gpt2 qwen3] [--kinds float32 bfloat16 int8] [--kills 0] [--seed 0]
Every model type of the tests, in each type of weights: one process with every instruction set of this
machine, and slices, replicas and stages, with AMX in both of its arithmetics. The rows are greedy, sampled,
with beams, contrastive, with tokens looked up, pooled, with an adapter, most with log-probabilities; of rows
that a type refuses, the errors must be the same. --kills: so many times the command and all of its ranks are
killed amid a run of several hundred rows, which goes on over another topology with another instruction set
until it is complete. Prints
what differs; the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from test_every_processor import KINDS, is_comparable
from test_every_type_adapters import matrices_of, write_adapter
from type_cases import TYPE_CASES, config_of, prompts_of, write_case

from mindbatch.checkpoint.placement.placements import sums_alike
from mindbatch.kernels.native_library import find_library
from mindbatch.model_spec.described_folder import division_errors
from mindbatch.model_spec.registry import describe, tensor_specs

PARAMS: list[dict[str, Any]] = [
    {"logprobs": 3},
    {"do_sample": True, "seed": 7, "num_return_sequences": 2, "logprobs": 1},
    {"num_beams": 3, "num_return_sequences": 2},
    {"penalty_alpha": 0.5, "top_k": 4},
    {"prompt_lookup_num_tokens": 3, "logprobs": 1},
    {"do_sample": True, "seed": 3, "top_p": 0.9, "temperature": 1.6, "logprobs": 2},
    {"pooling": "mean"},
    {"do_sample": True, "seed": 5, "typical_p": 0.8, "repetition_penalty": 1.2},
]
WHOLE = (1, 1, 1)
TOPOLOGIES = [(1, 2, 1), (1, 4, 1), (2, 1, 1), (1, 1, 2), (2, 2, 1), (1, 2, 2)]
"""data_parallel, model_parallel and pipeline_stage."""


@dataclass(frozen=True)
class Way:
    """How rows are computed. arithmetic: of the instruction set "auto"."""

    kind: str
    topology: tuple[int, int, int] = WHOLE
    instruction_set: str = "auto"
    arithmetic: str = "vectors"

    def __str__(self) -> str:
        replicas, slices, stages = self.topology
        how = self.arithmetic if self.instruction_set == "auto" else self.instruction_set
        return f"{self.kind}, dp {replicas} mp {slices} pp {stages}, {how}"

    @property
    def whole(self) -> Way:
        """What one process computes in the same arithmetic."""
        return Way(self.kind, arithmetic=self.arithmetic)

    def arguments(self) -> list[str]:
        names = ("data_parallel", "model_parallel", "pipeline_stage")
        sizes = [f"parallel.{name}={size}" for name, size in zip(names, self.topology, strict=True)]
        kind = [f"model.{key}={value}" for key, value in KINDS[self.kind].items()]
        if self.instruction_set == "auto":
            return [*sizes, *kind, f"runtime.arithmetic={self.arithmetic}"]
        return [*sizes, *kind, f"runtime.instruction_set={self.instruction_set}"]


class Job:
    """A case's model, an adapter of it and rows, in a folder; and the command that runs them."""

    def __init__(self, folder: Path, case: str, copies: int = 1) -> None:
        """copies: how often the rows are written, each time with other seeds."""
        folder.mkdir(parents=True)
        self.folder, self.case = folder, case
        write_case(folder / "model", case)
        write_adapter(folder / "adapter", case, matrices_of(case).linear)
        rows = [
            {
                "prompt": prompt,
                "decoding": {"max_new_tokens": 6, **params} | ({"seed": copy} if "seed" in params else {}),
                "adapter": "tuned" if number % 3 == 2 else None,
            }
            for copy in range(copies)
            for number, prompt in enumerate(prompts_of(case))
            for params in (PARAMS[number % len(PARAMS)],)
        ]
        (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def ways(self, kinds: Sequence[str]) -> Iterator[Way]:
        """All of which a type's results must be the same bytes as those of one process."""
        library = find_library()
        assert library is not None
        for kind in kinds:
            for variant in library.variants:
                if is_comparable(variant, kind):
                    yield Way(kind, WHOLE, variant)
            has_tiles = not is_comparable(library.variants[0], kind)
            for topology in filter(self.can_run, TOPOLOGIES):
                yield Way(kind, topology)
                if has_tiles:
                    yield Way(kind, topology, arithmetic="auto")

    def can_run(self, topology: tuple[int, int, int]) -> bool:
        _, slices, stages = topology
        arch = describe(config_of(self.case))
        return not division_errors(arch, slices, stages) and sums_alike(tensor_specs(arch), slices)

    def command(self, run: Path, way: Way) -> list[str]:
        fixed = (
            f"model.checkpoint_name_or_path={self.folder / 'model'}",
            "model.batch_size=6",
            f"data.path={self.folder / 'rows.jsonl'}",
            "data.prompt_column=prompt",
            "data.decoding_column=decoding",
            "data.adapter_column=adapter",
            f"lora.adapters={{tuned: {self.folder / 'adapter'}}}",
            "runtime.max_batched_tokens=64",
            "runtime.num_threads=1",
            "output.token_ids=true",
            f"output.dir={run}",
        )
        return [sys.executable, "-m", "mindbatch", "batch", *fixed, *way.arguments()]

    def results(self, way: Way) -> dict[str, bytes]:
        """The files of a complete run, by their names."""
        run = self.folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        done = subprocess.run(self.command(run, way), capture_output=True, text=True)
        assert done.returncode in (0, 1), f"{way}: {done.stderr[-3000:]}"
        return files_of(run)


def files_of(run: Path) -> dict[str, bytes]:
    found = {
        name: (run / name).read_bytes() for name in ("results.jsonl", "errors.jsonl") if (run / name).exists()
    }
    assert found.get("results.jsonl"), f"{run}: there are no results"
    return found


def differences(job: Job, ways: Sequence[Way]) -> Iterator[str]:
    """A line for each way whose files differ from those of one process in the same arithmetic."""
    wholes = {whole: job.results(whole) for whole in dict.fromkeys(way.whole for way in ways)}
    for way in ways:
        found, whole = job.results(way), wholes[way.whole]
        if found != whole:
            lines = [(file, *_rows(whole, found, file)) for file in found]
            yield f"{job.case}: {way}: " + ", ".join(
                f"{n} of {rows} rows of {file}" for file, n, rows in lines
            )


def _rows(whole: dict[str, bytes], found: dict[str, bytes], file: str) -> tuple[int, int]:
    """How many rows differ, and how many there are."""
    one, other = (files.get(file, b"").splitlines() for files in (whole, found))
    return sum(a != b for a, b in zip(one, other, strict=False)) + abs(len(one) - len(other)), len(one)


def kill_and_go_on(job: Job, kind: str, kills: int, chance: random.Random) -> Iterator[str]:
    """Kills runs amid their rows, each to go on in another way; a line where a complete run differs."""
    variants = [way for way in job.ways([kind]) if way.topology == WHOLE]
    topologies = [WHOLE, *(topology for topology in TOPOLOGIES if job.can_run(topology))]
    started = time.monotonic()
    whole, seconds = job.results(Way(kind)), time.monotonic() - started
    run, killed = job.folder / "killed", 0
    while killed < kills:
        shutil.rmtree(run, ignore_errors=True)
        code: int | None = None
        while code is None:
            way = Way(kind, chance.choice(topologies), chance.choice(variants).instruction_set)
            patience = chance.uniform(0.5, max(1.5, seconds)) if killed < kills else 600.0
            code = _run_until(job.command(run, way), patience)
            killed += code is None
        if code not in (0, 1) or files_of(run) != whole:
            yield f"{job.case}, {kind}: after {killed} kills the results differ; the exit code is {code}"
    print(f"{job.case}, {kind}: {killed} kills", flush=True)


def _run_until(command: Sequence[str], seconds: float) -> int | None:
    """The exit code of a command; None if it and all that it started was killed."""
    process = subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", nargs="*", default=TYPE_CASES)
    parser.add_argument("--kinds", nargs="*", default=[*KINDS])
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = compared = 0
    for case in options.cases:
        job = Job(options.folder / case, case, copies=40 if options.kills else 1)
        ways = [*job.ways(options.kinds)]
        lines: list[str] = []
        if options.kills:
            chance = random.Random(options.seed)
            for kind in options.kinds:
                lines += kill_and_go_on(job, kind, options.kills, chance)
        else:
            lines, compared = [*differences(job, ways)], compared + len(ways)
            print(f"{case}: {len(ways)} ways", flush=True)
        found += len(lines)
        print("".join(f"{line}\n" for line in lines), end="", flush=True)
        shutil.rmtree(options.folder / case)
    print(f"{found} differences" + (f" in {compared} runs" if compared else ""))
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
