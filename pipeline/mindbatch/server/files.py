"""Files that clients bring for their batches, under names of ours."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import BinaryIO

from mindbatch.io.storage import Storage, WholeFile, make_folder
from mindbatch.server.api_errors import ApiError
from mindbatch.server.records import FileRecord, Records, is_id, new_id

LONGEST_NAME = 255
_CHUNK = 1 << 20


def is_own(path: Path) -> bool:
    """True if there is a file of ours: no link, which could lead anywhere."""
    return path.is_file() and not path.is_symlink()


class Files:
    """Files of one folder. A file is there once its record is; what was cut off goes at the next start."""

    def __init__(self, folder: Path, storage: Storage, max_files: int) -> None:
        make_folder(folder)
        self._folder, self._storage, self._max_files = folder, storage, max_files
        self._records = Records(folder, storage)
        self._lock = threading.Lock()
        self._files = self._records.read_all(FileRecord)
        for path in folder.glob("*.jsonl"):
            if is_id(path.stem) and is_own(path) and not (folder / f"{path.stem}.json").exists():
                path.unlink()

    def add(self, content: BinaryIO, filename: str) -> FileRecord:
        """Keeps a file. Raises an ApiError where there are too many, StorageError where there is no room."""
        with self._lock:
            if len(self._files) >= self._max_files:
                raise ApiError(
                    400,
                    f"there are {len(self._files)} files, the most that are kept; delete some",
                    "too_many_files",
                )
        name, size = new_id("file-"), 0
        with WholeFile(self.path(name), self._storage) as file:
            while chunk := content.read(_CHUNK):
                size += len(chunk)
                file.write(chunk)
        record = FileRecord(name, filename[:LONGEST_NAME], size, int(time.time()))
        self._records.write(record)
        with self._lock:
            self._files[name] = record
        return record

    def path(self, name: str) -> Path:
        """The place of a file's content."""
        assert is_id(name), name
        return self._folder / f"{name}.jsonl"

    def find(self, name: str) -> FileRecord | None:
        return self._files.get(name)

    def all(self) -> list[FileRecord]:
        """The files, in the order they came in."""
        with self._lock:
            return [*self._files.values()]

    def delete(self, name: str) -> None:
        """Removes a file: its record first, so that none is left without content."""
        with self._lock:
            self._files.pop(name, None)
        self._records.remove(name)
        self.path(name).unlink(missing_ok=True)
