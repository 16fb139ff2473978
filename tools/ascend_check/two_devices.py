"""Runs commands in child processes, and with them a job on two devices: its tokens, or its graphs."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ascend_check.page import COMPILED, FAILED, PASSED, SKIPPED, Result
from mindbatch.io.children import run
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED
from mindbatch.io.storage import TemporaryFolder

_LAST_LINES = 40


class CommandError(Exception):
    """Raised when a command fails or times out. log: its last lines and those of its processes."""

    def __init__(self, reason: str, *log: str) -> None:
        super().__init__(reason)
        self.log = log


def said_by(
    *words: str, seconds: float = 900.0, logs: Path | None = None, allowed: Collection[int] = (EXIT_DONE,)
) -> str:
    """Runs a command and returns what it prints.

    logs: a folder below which its processes keep their logs. allowed: its exit codes.

    Raises:
        CommandError: it has another exit code, or has not ended after so many seconds.
    """
    try:
        done = run([sys.executable, "-I", "-m", "mindbatch", *words], seconds)
    except TimeoutError:
        raise CommandError(f"timed out after {seconds:g} s", *last_lines(logs)) from None
    if done.code not in allowed:
        reason, *others = done.errors.strip().splitlines() or ["nothing was said"]
        raise CommandError(f"exit code {done.code}: {reason}", *others, *last_lines(logs))
    return done.output


def last_lines(folder: Path | None) -> Iterator[str]:
    """Yields the ends of the logs in a folder, each line with the name of its file."""
    for path in sorted(folder.rglob("*.log")) if folder is not None else ():
        for line in path.read_text(errors="replace").splitlines()[-_LAST_LINES:]:
            yield f"{path.name}: {line}"


RECORDED = Path(__file__).parent / "two_devices.json"
"""Token ids of one process on a CPU by prompt; tests/makers/record_ascend_check.py writes them."""
PROMPTS = ("An increasing sequence: one,", "A decreasing sequence: nine,", "three plus four is")
TWO = "parallel.model_parallel=2"
_NPU = "runtime.device_target=Ascend"
_MODEL = (  # few graphs
    *("model=tiny_gpt2", "model.batch_size=2"),
    *("runtime.max_batched_tokens=8", "runtime.cache_memory=64MiB"),
)
_DEVICES = Path("/dev")


def run_on_npus() -> Result:
    """Runs the job on the first two NPUs of this machine; skips it with only one."""
    if len([*_DEVICES.glob("davinci[0-9]*")]) == 1:
        return _result(SKIPPED, "this machine has one NPU")
    with TemporaryFolder() as folder:
        return judged(folder, _NPU)


def judged(folder: Path, *words: str) -> Result:
    """Runs the job over two ranks and compares its tokens. words: settings of the devices."""
    try:
        errors = [*_differences(generated(folder, TWO, *words), recorded())]
    except CommandError as error:
        return _result(FAILED, str(error), *error.log)
    if errors:
        return _result(FAILED, "; ".join(errors), *last_lines(folder))
    return _result(PASSED, "the tokens of one process on a CPU")


def generated(folder: Path, *words: str) -> dict[str, list[int]]:
    """By prompt the token ids that `mindbatch batch` gives. folder: an empty one, for its files and logs.

    Raises:
        CommandError: it failed.
    """
    rows, run = folder / "rows.jsonl", folder / "run"
    rows.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    settings = [f"data.path={rows}", f"output.dir={run}", "output.token_ids=true", "progress=none"]
    said_by("batch", *_MODEL, "decoding.max_new_tokens=24", *settings, *words, logs=folder)
    actual = map(json.loads, (run / "results.jsonl").read_text().splitlines())
    return {row["prompt"]: row["generations"][0]["token_ids"] for row in actual}


def recorded() -> dict[str, list[int]]:
    actual: dict[str, list[int]] = json.loads(RECORDED.read_text())
    return actual


def compile_graphs() -> Result:
    words = (*_MODEL, TWO, "ranks=all", "report=json")
    try:
        ranks = json.loads(said_by("compile", *words, allowed=(EXIT_DONE, EXIT_FAILED)))["ranks"]
    except CommandError as error:
        return _result(FAILED, str(error), *error.log)
    except ValueError:
        return _result(FAILED, "the ranks could not be simulated")
    if errors := [problem for rank in ranks for problem in _refusals(rank)]:
        return _result(FAILED, "; ".join(errors))
    graphs = ", ".join(f"{len(rank['graphs'])} graphs of rank {rank['rank']}" for rank in ranks)
    return _result(COMPILED, graphs)


def _differences(actual: Mapping[str, list[int]], expected: Mapping[str, list[int]]) -> Iterator[str]:
    for prompt, tokens in expected.items():
        there = actual.get(prompt, [])
        if there != tokens:
            pairs = zip(there, tokens, strict=False)
            index = next((at for at, (one, other) in enumerate(pairs) if one != other), len(there))
            yield f"{prompt!r}: token {index} of {len(tokens)} differs from a CPU"


def _refusals(rank: Mapping[str, Any]) -> Iterator[str]:
    if rank["error"] is not None:
        yield f"rank {rank['rank']}: {rank['error']}"
    for graph in rank["graphs"]:
        if not graph["is_compiled"]:
            yield f"rank {rank['rank']}, {graph['kind']}: {graph['operator']}: {graph['rule']}"


def _result(outcome: str, detail: str, *log: str) -> Result:
    return Result("devices", "two of them", "bfloat16", outcome, detail, log)
