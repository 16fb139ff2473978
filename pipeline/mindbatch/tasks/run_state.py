"""The state of a run, read off its folder without changing anything there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from mindbatch.io.errors import MindBatchError
from mindbatch.io.regular_file import first_bytes, open_regular
from mindbatch.ledger.lock import is_running
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord

LARGEST_MANIFEST = 1 << 26
_TAIL_BYTES = 1 << 16

Status = Literal["running", "complete", "interrupted", "incomplete", "damaged"]


@dataclass(frozen=True, kw_only=True)
class RunState:
    """State of a run as shown by `mindbatch runs`; None stands for what is not known.

    status: `interrupted` has ended in an orderly way, an `incomplete` run has not; the same command
    resumes both.
    total, done, failed: rows. tokens_per_second: generated.
    """

    folder: str
    status: Status
    total: int | None = None
    done: int | None = None
    failed: int | None = None
    tokens_per_second: float | None = None
    created: str | None = None
    command: tuple[str, ...] = ()
    fault: str | None = None


def state_of(path: Path) -> RunState:
    """The state of the run in a folder that holds one; damage is part of the state."""
    folder = RunFolder(path)
    try:
        record = RunRecord.read(folder)
    except MindBatchError as error:
        return RunState(folder=str(path), status="damaged", fault=str(error))
    manifest, sample = _manifest(folder), _last_sample(folder.metrics)
    status = _status(folder, manifest)
    counts = _of_manifest(manifest) if status in ("complete", "interrupted") else _of_sample(sample)
    return RunState(
        folder=str(path), status=status, created=record.created, command=tuple(record.command), **counts
    )


def _status(folder: RunFolder, manifest: Mapping[str, Any]) -> Status:
    if is_running(folder):
        return "running"
    match manifest.get("status"):
        case "complete" | "interrupted" as status:
            found: Status = status
            return found
    return "incomplete"


def _of_manifest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    rows = manifest.get("rows")
    rows = rows if isinstance(rows, dict) else {}
    counts = {name: _number(rows.get(name)) for name in ("total", "done", "failed")}
    return {**counts, "tokens_per_second": _number(manifest.get("generated_tokens_per_second"))}


def _of_sample(sample: Mapping[str, Any]) -> dict[str, Any]:
    counts = {name: _number(sample.get(f"rows_{name}")) for name in ("total", "done", "failed")}
    tokens, seconds = _number(sample.get("generated_tokens")), _number(sample.get("seconds"))
    return {**counts, "tokens_per_second": tokens / seconds if tokens is not None and seconds else None}


def _number(value: object) -> Any:
    """`value` if it is a number."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _manifest(folder: RunFolder) -> Mapping[str, Any]:
    try:
        return _mapping(first_bytes(folder.manifest, LARGEST_MANIFEST))
    except OSError:
        return {}


def _last_sample(path: Path) -> Mapping[str, Any]:
    """The last whole line of the metrics."""
    try:
        with open(open_regular(path), "rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return {}
    samples = (_mapping(line) for line in reversed(lines))
    return next((sample for sample in samples if sample), {})


def _mapping(text: bytes) -> Mapping[str, Any]:
    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return content if isinstance(content, dict) else {}
