"""The target's files of tensors while they are made: full size from the start, synced before they count."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from types import TracebackType

from mindbatch.checkpoint.formats.stored import FileLayout, byte_ranges
from mindbatch.checkpoint.reshard.folder import make_folders
from mindbatch.checkpoint.reshard.job import Writing
from mindbatch.checkpoint.reshard.journal import Journal
from mindbatch.checkpoint.reshard.write import Written
from mindbatch.io.errors import CheckpointError
from mindbatch.io.storage import Storage, StorageError, writing


class TargetFiles:
    """The files below a target folder, opened when they are needed; closing them syncs nothing.

    Threads may share them. All methods raise StorageError.
    """

    def __init__(self, folder: Path, storage: Storage) -> None:
        self._folder = folder
        self._storage = storage
        self._files: dict[str, int] = {}
        self._lock = Lock()

    def prepare(self, layouts: Mapping[str, FileLayout]) -> None:
        """Makes the files that are missing; all get their full size, with all but the tensors in them."""
        for name, layout in layouts.items():
            make_folders((self._folder / name).parent, self._storage)
            with writing(self._folder / name):
                if not (self._folder / name).exists():
                    self._files[name] = self._storage.create(self._folder / name)
                self._storage.truncate(self._file(name), layout.total_bytes)
                for offset, data in layout.head:
                    self._storage.write_at(self._file(name), data, offset)

    def write(self, target: Writing, start: int, data: memoryview) -> None:
        """Writes a tensor's bytes from `start` on into its file, which is there and of full size."""
        with writing(self._folder / target.file):
            for offset, nbytes in byte_ranges(target.extents, start, len(data)):
                self._storage.write_at(self._file(target.file), data[:nbytes], offset)
                data = data[nbytes:]

    def sync(self, names: Iterable[str] | None = None) -> None:
        """Returns once what was written into the opened files, or those named, is on the disk."""
        for name in self._files if names is None else names:
            with writing(self._folder / name):
                self._storage.sync(self._file(name))

    def close(self) -> None:
        while self._files:
            name, file = self._files.popitem()
            with writing(self._folder / name):
                self._storage.close(file)

    def __enter__(self) -> TargetFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._files:
            with contextlib.suppress(StorageError):  # what counts was synced, or has gone wrong before
                self.close()

    def _file(self, name: str) -> int:
        with self._lock:
            if name not in self._files:
                self._files[name] = self._storage.reopen(self._folder / name)
            return self._files[name]


def refuse_without_room(folder: Path, layouts: Mapping[str, FileLayout]) -> None:
    """CheckpointError when the disk has not the room that is still needed, as far as can be told."""
    needed = sum(layout.total_bytes for layout in layouts.values())
    with contextlib.suppress(OSError):
        there = sum(path.stat().st_blocks * 512 for name in layouts if (path := folder / name).exists())
        disk = os.statvfs(folder)
        free = disk.f_bavail * disk.f_frsize
        if needed - there > free:
            raise CheckpointError(
                f"{folder}: {needed - there:,} bytes are still to be written, and the disk has room for "
                f"{free:,}"
            )


class Recorder:
    """Notes finished tensors in the journal, some at a time, each after its file was synced.

    sync_bytes: how much may be in files and not noted. in_background: the work goes on meanwhile.
    """

    def __init__(self, files: TargetFiles, journal: Journal, sync_bytes: int, *, in_background: bool) -> None:
        self._sync_bytes = sync_bytes
        self._files = files
        self._journal = journal
        self._waiting: list[Written] = []
        self._pool = ThreadPoolExecutor(1) if in_background else None
        self._running: Future[None] | None = None

    def take(self, written: Iterable[Written]) -> None:
        """Tensors that are in their files. StorageError when an earlier sync has failed."""
        self._waiting += written
        if sum(tensor.nbytes for tensor in self._waiting) < self._sync_bytes:
            return
        if self._running is None or self._running.done():
            self._begin()

    def finish(self) -> None:
        """Returns when everything is noted."""
        self._begin()
        if self._running is not None:
            self._running.result()

    def close(self) -> None:
        """Waits for what is under way; what has not begun is not noted."""
        if self._pool is not None:
            self._pool.shutdown()

    def _begin(self) -> None:
        if self._running is not None:
            self._running.result()
        written, self._waiting = self._waiting, []
        if self._pool is None:
            self._note(written)
        else:
            self._running = self._pool.submit(self._note, written)

    def _note(self, written: list[Written]) -> None:
        if written:
            self._files.sync(dict.fromkeys(tensor.file for tensor in written))
            self._journal.append(written)
