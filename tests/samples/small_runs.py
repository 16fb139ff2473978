"""Runs made by hand: a record, a ledger, and what else a run leaves."""

from pathlib import Path
from typing import Any

import orjson

from mindbatch.io.storage import Storage
from mindbatch.ledger.entries import Entry
from mindbatch.ledger.ledger import Ledger
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord


def generation(
    text: str, *, finish_reason: str = "stop", token_ids: list[int] | None = None
) -> dict[str, Any]:
    """A generation whose tokens are its characters."""
    return {
        "index": 0,
        "text": text,
        "token_ids": [*map(ord, text)] if token_ids is None else token_ids,
        "finish_reason": finish_reason,
        "cumulative_logprob": -1.0,
    }


def result(key: str, *texts: str, row: str = "asked") -> Entry:
    """A row with a generation for each text."""
    return Entry(key, row, "result", {"generations": [*map(generation, texts)], "prompt_tokens": 1})


def failure(key: str) -> Entry:
    """A row that failed."""
    return Entry(key, "asked", "error", {"stage": "prompt", "reason": "too long"})


def make_run(
    path: Path,
    *entries: Entry,
    manifest: dict[str, Any] | None = None,
    samples: list[dict[str, Any]] | None = None,
    errors: list[dict[str, Any]] | None = None,
    command: tuple[str, ...] = ("mindbatch", "batch"),
    computed_with: dict[str, str | int] | None = None,
    **fields: Any,
) -> RunFolder:
    """A run with these entries in its ledger; `fields` are those of its record."""
    folder, storage = RunFolder(path), Storage()
    folder.make(storage)
    folder.lock.touch()
    record = RunRecord(
        created="2026-01-02T03:04:05+00:00",
        command=list(command),
        fields=fields,
        dataset={},
        date="2026-01-02",
    )
    record.write(folder, storage)
    with Ledger(folder, record.fingerprint, storage) as ledger:
        assert list(ledger.recover()) == []
        ledger.computed_with = computed_with or {}
        for entry in entries:
            ledger.append(entry)
    if manifest is not None:
        folder.manifest.write_bytes(orjson.dumps(manifest))
    for file, lines in ((folder.metrics, samples), (folder.errors, errors)):
        if lines is not None:
            file.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return folder
