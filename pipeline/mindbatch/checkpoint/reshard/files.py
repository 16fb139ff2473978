"""The target's files of tensors while they are made: full size from the start, synced before they count."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from mindbatch.checkpoint.formats.file_layout import FileLayout
from mindbatch.checkpoint.reshard.folder import make_folders
from mindbatch.checkpoint.reshard.journal import Journal
from mindbatch.checkpoint.reshard.write import Written
from mindbatch.errors import CheckpointError
from mindbatch.storage import Storage, StorageError


class TargetFiles:
    """The files below a folder, within `with`: made where they are missing, with all but the tensors in them.

    Raises StorageError.
    """

    def __init__(self, folder: Path, layouts: Mapping[str, FileLayout], storage: Storage) -> None:
        self._folder = folder
        self._layouts = layouts
        self._storage = storage
        self._files: dict[str, int] = {}

    def __enter__(self) -> TargetFiles:
        try:
            for name, layout in self._layouts.items():
                self._prepare(name, layout)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _prepare(self, name: str, layout: FileLayout) -> None:
        path = self._folder / name
        make_folders(path.parent, self._storage)
        try:
            is_there = path.exists()
            file = self._storage.reopen(path) if is_there else self._storage.create(path)
            self._files[name] = file
            self._storage.truncate(file, layout.total_bytes)
            for offset, piece in layout.head:
                self._storage.write_at(file, piece, offset)
        except OSError as error:
            raise StorageError.writing(path, error) from error

    def sync(self, names: Iterable[str] | None = None) -> None:
        """Returns once what was written into the files, or those named, is on the disk."""
        for name in self._files if names is None else names:
            try:
                self._storage.sync(self._files[name])
            except OSError as error:
                raise StorageError.writing(self._folder / name, error) from error

    def close(self) -> None:
        """Closes them; nothing is synced."""
        files, self._files = self._files, {}
        for file in files.values():
            with contextlib.suppress(OSError):
                self._storage.close(file)


def refuse_without_room(folder: Path, layouts: Mapping[str, FileLayout]) -> None:
    """CheckpointError when the disk has not the room that is still needed, as far as can be told."""
    needed = sum(layout.total_bytes for layout in layouts.values())
    with contextlib.suppress(OSError):
        there = sum(path.stat().st_blocks * 512 for name in layouts if (path := folder / name).exists())
        disk = os.statvfs(folder)
        free = disk.f_bavail * disk.f_frsize
        if needed - there > free:
            raise CheckpointError(
                f"{folder}: {(needed - there) / 1e9:.2f} GB are still to be written, and the disk has room "
                f"for {free / 1e9:.2f} GB"
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
        if sum(each.nbytes for each in self._waiting) < self._sync_bytes:
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
            self._files.sync(dict.fromkeys(each.file for each in written))
            self._journal.append(written)
