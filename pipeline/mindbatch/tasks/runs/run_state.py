"""Finds the runs below a folder, and reads the state of each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from mindbatch.io.amounts import per_second
from mindbatch.io.errors import MindBatchError
from mindbatch.ledger.run_folder import RunFolder, is_running
from mindbatch.ledger.run_record import RunRecord, read_manifest
from mindbatch.run.metrics import last_samples

DEEPEST = 6
"""Depth to which folders are searched, so that a wrong folder does not mean a search of the whole disk."""

FolderStatus = Literal["running", "complete", "interrupted", "incomplete", "damaged"]


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
    manifest = read_manifest(folder)
    status = _status(folder, manifest)
    counts = _of_manifest(manifest) if status in ("complete", "interrupted") else _of_samples(folder)
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


def _of_samples(folder: RunFolder) -> dict[str, Any]:
    samples = last_samples(folder.metrics)
    if not samples:
        return {}
    _, last = samples[-1]
    speed = per_second(last.generated_tokens, last.seconds) if last.seconds else None
    counts = {"total": last.rows_total, "done": last.rows_done, "failed": last.rows_failed}
    return {**counts, "tokens_per_second": speed}


def _number(value: object) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def json_mapping(text: bytes) -> Mapping[str, Any]:
    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return content if isinstance(content, dict) else {}
