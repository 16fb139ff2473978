"""Stores uploaded files, and the records of files and batches as JSON files written atomically."""

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
_MAX_ERROR_CHARACTERS = 200_000
"""Length of all error messages of a batch together."""
LONGEST_NAME = 255
_CHUNK = 1 << 20
_WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def new_id(prefix: str) -> str:
    """Makes an identifier of 96 random bits."""
    return prefix + secrets.token_hex(12)


def is_id(name: str) -> bool:
    """True for an identifier that `new_id` can make, which is safe as a file name."""
    return _ID.fullmatch(name) is not None


def result_of(name: str) -> tuple[str, str]:
    """Splits the identifier of a result file into batch and kind; both are empty for other identifiers."""
    match = _RESULT_ID.fullmatch(name)
    return ("", "") if match is None else (f"batch_{match[1]}", match[2])


def window_seconds(text: object) -> int | None:
    """Parses a completion window such as 24h; returns None for anything else."""
    match = _WINDOW.fullmatch(text) if isinstance(text, str) else None
    return None if match is None else int(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True)
class FileRecord:
    """An uploaded file, or a result of a batch."""

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
    """A batch, whose times are seconds since 1970.

    `errors` has the errors of a failed batch until they are written to the disk, `num_errors` their number
    there.
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
        """Sets the status and its time."""
        self.status = status
        setattr(self, f"{status}_at", int(time.time()))

    def result_id(self, kind: str) -> str | None:
        """Returns the identifier of the output or error file if it exists."""
        count = self.completed if kind == RESULTS else self.failed
        if not self.has_ended or kind in self.removed or not count:
            return None
        return f"file-{self.id.removeprefix('batch_')}-{kind}"

    def content(self) -> dict[str, Any]:
        content = {**vars(self)}
        del content["errors"]
        return content

    def object(self, errors: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """Returns OpenAI's object with the errors read from the disk."""
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
    """Shortens and bounds the errors of a batch; a last one has the number of the others.

    count: the number of all errors.
    """
    bounded: list[dict[str, Any]] = []
    left = _MAX_ERROR_CHARACTERS
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
    """Keeps the records of one kind in a folder; the methods are thread-safe."""

    def __init__(self, folder: Path, kind: type[Record], storage: Storage) -> None:
        """Reads the records; skips a damaged one with a message. Raises StorageError."""
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
        """Returns the records in the order of their creation."""
        return list(self._records.values())

    def keep(self, record: Record) -> None:
        """Writes a new or changed record. Raises StorageError."""
        write_whole(self.path(record.id, ".json"), orjson.dumps(record.content()) + b"\n", self._storage)
        self._records[record.id] = record

    def delete(self, *names: str) -> None:
        """Removes records and then their content. Raises OSError."""
        for name in names:
            self._records.pop(name, None)
            self.path(name, ".json").unlink(missing_ok=True)
        self._storage.sync_folder(self.folder)  # so that a crash leaves no record without its content
        for name in names:
            self._remove_content(name)

    def _remove_content(self, name: str) -> None:
        """Removes the content of a record that was removed."""

    def object(self, record: Record) -> dict[str, Any]:
        """Returns OpenAI's object for a record, which may read the disk. Raises StorageError."""
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
    say(f"{path}: damaged; ignored")
    return None


def own_size(path: Path) -> int | None:
    """Returns the size of a regular file; None if it does not exist or is a link."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def is_own(path: Path) -> bool:
    return own_size(path) is not None


class BatchRecords(Records[BatchRecord]):
    """Keeps records of batches, and the errors of failed ones in files of their own, not in memory."""

    def __init__(self, folder: Path, storage: Storage) -> None:
        super().__init__(folder, BatchRecord, storage)
        for record in self.all():
            if record.errors:  # written by an earlier version
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
        record = copy(record)  # a snapshot: the batch may fail meanwhile, which moves its errors to the disk
        errors: list[dict[str, Any]] = record.errors
        if record.num_errors:
            path = self._errors(record.id)
            try:
                errors = orjson.loads(read_regular(path, _LARGEST_RECORD))
            except (OSError, ValueError) as error:
                if (passing := passing_error(error)) is not None:
                    raise StorageError.reading(path, passing) from error
                errors = [{"code": "server_error", "message": "the errors cannot be read"}]
        return record.object(errors)

    def _errors(self, name: str) -> Path:
        return self.path(name, ".errors")


class Files(Records[FileRecord]):
    """Keeps uploaded files under generated names.

    A file exists once its record does; an interrupted upload is removed at the next start.
    """

    def __init__(self, folder: Path, storage: Storage, max_files: int) -> None:
        super().__init__(folder, FileRecord, storage)
        self._max_files = max_files
        for path in folder.glob("*.jsonl"):
            if is_id(path.stem) and is_own(path) and not path.with_suffix(".json").exists():
                path.unlink()

    def add(self, content: BinaryIO, filename: str) -> FileRecord:
        """Stores a file. Raises ApiError if there are too many, StorageError if it cannot be written."""
        if (count := len(self._records)) >= self._max_files:
            message = f"there are {count} files, the maximum; delete some"
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
