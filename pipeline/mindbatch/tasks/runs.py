"""`mindbatch runs`: lists the runs below a folder, with their state, rows, speed and command."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import orjson

from mindbatch.config.paths import folder_error, resolved
from mindbatch.config.schema import TaskConfig, option
from mindbatch.fields import kinds as kind
from mindbatch.io.amounts import per_second, table
from mindbatch.io.errors import EXIT_DONE, MindBatchError
from mindbatch.io.regular_file import open_regular
from mindbatch.io.screen_text import printable, show, show_json
from mindbatch.ledger.run_folder import RunFolder, is_running
from mindbatch.ledger.run_record import RunRecord, read_manifest

DEEPEST = 6
"""Depth to which folders are searched, so that a wrong folder does not mean a search of the whole disk."""

TITLES = ("status", "done", "failed", "rows", "tokens/s", "begun (UTC)", "run")
NUMBERS = (1, 2, 3, 4)

NO_RUNS = "no runs"
_TAIL_BYTES = 1 << 16
FolderStatus = Literal["running", "complete", "interrupted", "incomplete", "damaged"]


@dataclasses.dataclass
class RunsConfig(TaskConfig):
    """The keys of `mindbatch runs`."""

    positional: ClassVar[tuple[str, ...]] = ("folder",)

    folder: str = option(".", "folder to search for runs", is_path=True)
    format: str = option("text", "text or json", kind.choice("text", "json"))
    verbose: bool = option(False, "show tracebacks")

    def resolve_paths(self) -> list[str]:
        errors: list[str] = []
        self.folder = resolved("folder", self.folder, folder_error, errors) or self.folder
        return errors


def run(config: RunsConfig) -> int:
    states = [state_of(folder) for folder in sorted(find_runs(Path(config.folder)))]
    if config.format == "json":
        show_json([as_json(state) for state in states])
    elif states:
        show(*as_lines(states))
    else:
        show(f"{printable(config.folder)}: {NO_RUNS}")
    return EXIT_DONE


def find_runs(top: Path) -> Iterator[Path]:
    """Yields the folders of runs at and below `top`.

    Hidden folders, links, folders within a run, and folders that cannot be read are skipped.
    """
    for name, folders, _ in os.walk(top):
        folder = Path(name)
        if RunFolder(folder).holds_a_run:
            yield folder
            folders.clear()
        elif len(folder.relative_to(top).parts) >= DEEPEST:
            folders.clear()
        folders[:] = [below for below in folders if not below.startswith(".")]


def as_json(state: RunState) -> dict[str, Any]:
    """Converts the state to JSON types, without `error` if there is none."""
    content = dataclasses.asdict(state)
    rows = {name: content.pop(name) for name in ("total", "done", "failed")}
    error = content.pop("error")
    content |= {"rows": rows, "command": list(state.command)}
    return content | ({"error": error} if error else {})


def as_lines(states: Sequence[RunState]) -> list[str]:
    """Makes a line for each run, and below it its command, or the error of a damaged run."""
    heading, *rows = table([TITLES, *map(_cells, states)], right=NUMBERS)
    below = (printable(state.error or shlex.join(state.command)) for state in states)
    return [heading, *(line for row, text in zip(rows, below, strict=True) for line in (row, f"    {text}"))]


def _cells(state: RunState) -> list[str]:
    speed = state.tokens_per_second
    return [
        printable(state.status),
        *(f"{count:,}" if count is not None else "-" for count in (state.done, state.failed, state.total)),
        f"{speed:,.1f}" if speed is not None else "-",
        printable((state.created or "-")[:16].replace("T", " ")),
        printable(state.folder),
    ]


@dataclass(frozen=True, kw_only=True)
class RunState:
    """State of a run as shown by `mindbatch runs`; None is an unknown value.

    status: an `interrupted` run ended after a signal, an `incomplete` one was killed; both can be
    resumed. total, done, failed: numbers of rows. tokens_per_second: of generated tokens.
    """

    folder: str
    status: FolderStatus
    total: int | None = None
    done: int | None = None
    failed: int | None = None
    tokens_per_second: float | None = None
    created: str | None = None
    command: tuple[str, ...] = ()
    error: str | None = None


def state_of(path: Path) -> RunState:
    """Reads the state of the run in a folder. Damage is part of the state, and raises nothing."""
    folder = RunFolder(path)
    try:
        record = RunRecord.read(folder)
    except MindBatchError as error:
        return RunState(folder=str(path), status="damaged", error=str(error))
    manifest, sample = read_manifest(folder), _last_sample(folder.metrics)
    status = _status(folder, manifest)
    counts = _of_manifest(manifest) if status in ("complete", "interrupted") else _of_sample(sample)
    return RunState(
        folder=str(path), status=status, created=record.created, command=tuple(record.command), **counts
    )


def _status(folder: RunFolder, manifest: Mapping[str, Any]) -> FolderStatus:
    if is_running(folder):
        return "running"
    match manifest.get("status"):
        case "complete" | "interrupted" as status:
            ended: FolderStatus = status
            return ended
    return "incomplete"


def _of_manifest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    rows = manifest.get("rows")
    rows = rows if isinstance(rows, dict) else {}
    counts = {name: _number(rows.get(name)) for name in ("total", "done", "failed")}
    return {**counts, "tokens_per_second": _number(manifest.get("generated_tokens_per_second"))}


def _of_sample(sample: Mapping[str, Any]) -> dict[str, Any]:
    counts = {name: _number(sample.get(f"rows_{name}")) for name in ("total", "done", "failed")}
    tokens, seconds = _number(sample.get("generated_tokens")), _number(sample.get("seconds"))
    is_known = tokens is not None and seconds
    return {**counts, "tokens_per_second": per_second(tokens, seconds) if is_known else None}


def _number(value: object) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _last_sample(path: Path) -> Mapping[str, Any]:
    """Reads the last whole line of the metrics."""
    try:
        with open(open_regular(path), "rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return {}
    samples = (json_mapping(line) for line in reversed(lines))
    return next((sample for sample in samples if sample), {})


def json_mapping(text: bytes) -> Mapping[str, Any]:
    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return content if isinstance(content, dict) else {}
