"""Records of files and batches: small JSON files, each written whole."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import orjson

from mindbatch.io.regular_file import read_regular
from mindbatch.io.screen_text import say
from mindbatch.io.storage import Storage, remove_leftovers, write_whole

FINAL = frozenset(("failed", "completed", "cancelled", "expired"))
"""Statuses of batches that have ended."""
RESULTS, ERRORS = "output", "errors"
_ID = re.compile(r"(?:file-|batch_)[0-9a-f]{24}")
_RESULT_ID = re.compile(rf"file-([0-9a-f]{{24}})-({RESULTS}|{ERRORS})")
_LARGEST_RECORD = 8 << 20
_WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def new_id(prefix: str) -> str:
    """An identifier of 96 random bits."""
    return prefix + secrets.token_hex(12)


def is_id(name: str) -> bool:
    """True for an identifier of a file or batch of ours, which is safe as the name of a file."""
    return _ID.fullmatch(name) is not None


def result_of(name: str) -> tuple[str, str]:
    """The batch, and which of its files, that the identifier of a result file names; empty for others."""
    match = _RESULT_ID.fullmatch(name)
    return ("", "") if match is None else (f"batch_{match[1]}", match[2])


def window_seconds(text: object) -> int | None:
    """The length of a completion window like 24h; None if it is none."""
    match = _WINDOW.fullmatch(text) if isinstance(text, str) else None
    return None if match is None else int(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True)
class FileRecord:
    """A file that a client has brought, or that a batch has written."""

    id: str
    filename: str
    bytes: int
    created_at: int
    purpose: str = "batch"

    def object(self) -> dict[str, Any]:
        """OpenAI's file object."""
        return {**asdict(self), "object": "file", "status": "processed", "expires_at": None}


@dataclass
class BatchRecord:
    """A batch. The times are seconds since 1970; errors are those of its lines, found before it began."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    metadata: dict[str, str] | None = None
    status: str = "validating"
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    total: int = 0
    completed: int = 0
    failed: int = 0
    removed: list[str] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        return self.status in FINAL

    def enter(self, status: str) -> None:
        """Takes on a status, at this moment."""
        self.status = status
        setattr(self, f"{status}_at", int(time.time()))

    def result_id(self, kind: str) -> str | None:
        """The identifier of its output or error file, once it is there."""
        count = self.completed if kind == RESULTS else self.failed
        if not self.has_ended or self.status == "failed" or kind in self.removed or not count:
            return None
        return f"file-{self.id.removeprefix('batch_')}-{kind}"

    def object(self) -> dict[str, Any]:
        """OpenAI's batch object."""
        content = asdict(self)
        counts = {name: content.pop(name) for name in ("total", "completed", "failed")}
        errors = content.pop("errors")
        del content["removed"]
        return {
            **content,
            "object": "batch",
            "errors": {"object": "list", "data": errors} if errors else None,
            "output_file_id": self.result_id(RESULTS),
            "error_file_id": self.result_id(ERRORS),
            "request_counts": counts,
        }


Record = TypeVar("Record", FileRecord, BatchRecord)


class Records:
    """The records in one folder, by identifier."""

    def __init__(self, folder: Path, storage: Storage) -> None:
        self.folder, self._storage = folder, storage

    def write(self, record: FileRecord | BatchRecord) -> None:
        """Writes a record; raises StorageError."""
        write_whole(self._path(record.id), orjson.dumps(asdict(record)) + b"\n", self._storage)

    def remove(self, name: str) -> None:
        """Removes a record, if it is there."""
        self._path(name).unlink(missing_ok=True)
        self._storage.sync_folder(self.folder)

    def read_all(self, kind: type[Record]) -> dict[str, Record]:
        """Every record, in the order of their making; one that is damaged is named and left out."""
        remove_leftovers(self.folder, self._storage, lambda name: True)
        records = []
        for path in sorted(self.folder.glob("*.json")):
            record = _read(path, kind)
            if record is None:
                say(f"{path}: damaged; left out")
            else:
                records.append(record)
        return {record.id: record for record in sorted(records, key=lambda record: record.created_at)}

    def _path(self, name: str) -> Path:
        assert is_id(name), name
        return self.folder / f"{name}.json"


def _read(path: Path, kind: type[Record]) -> Record | None:
    try:
        content = orjson.loads(read_regular(path, _LARGEST_RECORD))
    except (OSError, orjson.JSONDecodeError):
        return None
    if not isinstance(content, Mapping) or content.get("id") != path.stem or not is_id(path.stem):
        return None
    hints = get_type_hints(kind)
    values = {name: value for name, value in content.items() if name in hints}
    if not all(_is_of(value, hints[name]) for name, value in values.items()):
        return None
    try:
        return kind(**values)
    except TypeError:  # one is missing
        return None


def _is_of(value: Any, hint: Any) -> bool:
    """True for a value of a field's type; of lists and mappings what they hold is not looked at."""
    kinds = [get_origin(part) or part for part in get_args(hint) or (hint,)]
    if get_origin(hint) in (list, dict):
        kinds = [get_origin(hint)]
    return type(value) in kinds
