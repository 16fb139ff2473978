"""Files of clients, and the records of files and batches: small JSON files, each written whole."""

import re
import secrets
import shutil
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import orjson

from mindbatch.io.errors import passing_error
from mindbatch.io.regular_file import read_regular
from mindbatch.io.screen_text import say
from mindbatch.io.storage import Storage, StorageError, WholeFile, make_folder, remove_leftovers, write_whole
from mindbatch.server.requests import ApiError

FINAL = frozenset(("failed", "completed", "cancelled", "expired"))
"""Statuses of batches that have ended."""
RESULTS, ERRORS = "output", "errors"
_ID = re.compile(r"(?:file-|batch_)[0-9a-f]{24}")
_RESULT_ID = re.compile(rf"file-([0-9a-f]{{24}})-({RESULTS}|{ERRORS})")
_LARGEST_RECORD = 64 << 20
_LONGEST_ERROR = 1000
_MOST_ERROR_CHARACTERS = 200_000
"""Of all errors of a batch."""
LONGEST_NAME = 255
_CHUNK = 1 << 20
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

    def content(self) -> dict[str, Any]:
        return {**vars(self)}

    def object(self) -> dict[str, Any]:
        return {**vars(self), "object": "file", "status": "processed", "expires_at": None}


@dataclass
class BatchRecord:
    """A batch. The times are seconds since 1970.

    errors: why it failed, those of its lines or others, until they are on the disk; num_errors: those there.
    """

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
    num_errors: int = 0

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
        if not self.has_ended or kind in self.removed or not count:
            return None
        return f"file-{self.id.removeprefix('batch_')}-{kind}"

    def content(self) -> dict[str, Any]:
        content = {**vars(self)}
        del content["errors"]
        return content

    def object(self, errors: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """OpenAI's object for it; `errors` are those on the disk."""
        content = self.content()
        counts = {name: content.pop(name) for name in ("total", "completed", "failed")}
        del content["removed"], content["num_errors"]
        return {
            **content,
            "object": "batch",
            "errors": {"object": "list", "data": errors} if errors else None,
            "output_file_id": self.result_id(RESULTS),
            "error_file_id": self.result_id(ERRORS),
            "request_counts": counts,
        }


def bounded_errors(errors: Sequence[Mapping[str, Any]], count: int) -> list[dict[str, Any]]:
    """As many of the errors of a batch as are told, their messages cut short, and how many more there are.

    count: of them all.
    """
    bounded: list[dict[str, Any]] = []
    left = _MOST_ERROR_CHARACTERS
    for error in errors:
        message = str(error.get("message"))
        if len(message) > _LONGEST_ERROR:
            message = f"{message[: _LONGEST_ERROR - 3]}..."
        left -= len(message)
        if left < 0:
            break
        bounded.append({**error, "message": message})
    if count > len(bounded):
        more = f"and {count - len(bounded)} more lines with errors"
        bounded.append({"code": "more_errors", "message": more, "param": None, "line": None})
    return bounded


Record = TypeVar("Record", FileRecord, BatchRecord)


class Records(Generic[Record]):
    """The records of one kind, in one folder; the methods may be called by any thread."""

    def __init__(self, folder: Path, kind: type[Record], storage: Storage) -> None:
        """Reads them; one that is damaged is named and left out. Raises StorageError."""
        make_folder(folder)
        remove_leftovers(folder, storage, lambda name: True)
        self.folder, self._storage = folder, storage
        records = [record for path in sorted(folder.glob("*.json")) if (record := _read(path, kind))]
        self._records: dict[str, Record] = {}
        for record in sorted(records, key=lambda record: record.created_at):
            self._records[record.id] = record

    def find(self, name: str) -> Record | None:
        return self._records.get(name)

    def all(self) -> list[Record]:
        """The records, in the order of their making."""
        return list(self._records.values())

    def keep(self, record: Record) -> None:
        """Writes a record that is new or has changed; raises StorageError."""
        write_whole(self.path(record.id, ".json"), orjson.dumps(record.content()) + b"\n", self._storage)
        self._records[record.id] = record

    def delete(self, *names: str) -> None:
        """Removes records, and then what goes with them; raises OSError."""
        for name in names:
            self._records.pop(name, None)
            self.path(name, ".json").unlink(missing_ok=True)
        self._storage.sync_folder(self.folder)  # no record is left without its content
        for name in names:
            self._remove_content(name)

    def _remove_content(self, name: str) -> None:
        """Removes what belongs to a record that is gone."""

    def object(self, record: Record) -> dict[str, Any]:
        """OpenAI's object for a record; may read the disk. Raises StorageError."""
        return record.object()

    def path(self, name: str, suffix: str = "") -> Path:
        assert is_id(name), name
        return self.folder / f"{name}{suffix}"


def _read(path: Path, kind: type[Record]) -> Record | None:
    try:
        content = orjson.loads(read_regular(path, _LARGEST_RECORD))
        record = kind(**{item.name: content[item.name] for item in fields(kind) if item.name in content})
        is_sound = record.id == path.stem and is_id(record.id) and isinstance(record.created_at, int)
    except (OSError, ValueError, TypeError) as error:
        if (passing := passing_error(error)) is not None:
            raise StorageError.reading(path, passing) from error
        is_sound = False
    if is_sound:
        return record
    say(f"{path}: damaged; left out")
    return None


def own_size(path: Path) -> int | None:
    """Bytes of a file of ours; None where there is none, or a link, which could lead anywhere."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def is_own(path: Path) -> bool:
    return own_size(path) is not None


class BatchRecords(Records[BatchRecord]):
    """Records of batches, and beside them the errors of those that failed, which are not kept in memory."""

    def __init__(self, folder: Path, storage: Storage) -> None:
        super().__init__(folder, BatchRecord, storage)
        for record in self.all():
            if record.errors:  # as they were kept before
                record.errors = bounded_errors(record.errors, len(record.errors))
                with suppress(StorageError):
                    self.keep(record)

    def keep(self, record: BatchRecord) -> None:
        if record.errors:
            write_whole(self._errors(record.id), orjson.dumps(record.errors) + b"\n", self._storage)
            record.num_errors = len(record.errors)
        super().keep(record)
        record.errors = []

    def _remove_content(self, name: str) -> None:
        self._errors(name).unlink(missing_ok=True)
        shutil.rmtree(self.path(name), ignore_errors=True)

    def object(self, record: BatchRecord) -> dict[str, Any]:
        record = copy(record)  # of one moment: it may fail meanwhile, and its errors go to the disk
        errors: list[dict[str, Any]] = record.errors
        if record.num_errors:
            path = self._errors(record.id)
            try:
                errors = orjson.loads(read_regular(path, _LARGEST_RECORD))
            except (OSError, ValueError) as error:
                if (passing := passing_error(error)) is not None:
                    raise StorageError.reading(path, passing) from error
                errors = [{"code": "server_error", "message": "its errors cannot be read any more"}]
        return record.object(errors)

    def _errors(self, name: str) -> Path:
        return self.path(name, ".errors")


class Files(Records[FileRecord]):
    """Files that clients bring for their batches, under names of ours.

    A file is there once its record is; what was cut off goes at the next start.
    """

    def __init__(self, folder: Path, storage: Storage, max_files: int) -> None:
        super().__init__(folder, FileRecord, storage)
        self._max_files = max_files
        for path in folder.glob("*.jsonl"):
            if is_id(path.stem) and is_own(path) and not path.with_suffix(".json").exists():
                path.unlink()

    def add(self, content: BinaryIO, filename: str) -> FileRecord:
        """Keeps a file. Raises an ApiError where there are too many, StorageError where there is no room."""
        if (count := len(self._records)) >= self._max_files:
            message = f"there are {count} files, the most that are kept; delete some"
            raise ApiError(400, message, "too_many_files")
        name, size = new_id("file-"), 0
        with WholeFile(self.content(name), self._storage) as file:
            while chunk := content.read(_CHUNK):
                size += len(chunk)
                file.write(chunk)
        record = FileRecord(name, filename[:LONGEST_NAME], size, int(time.time()))
        self.keep(record)
        return record

    def content(self, name: str) -> Path:
        return self.path(name, ".jsonl")

    def _remove_content(self, name: str) -> None:
        self.content(name).unlink(missing_ok=True)
