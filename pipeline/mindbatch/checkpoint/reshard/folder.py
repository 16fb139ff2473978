"""The folders of a reshard and their files: the finished one with its marker, DIR.part while it is made."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from mindbatch.checkpoint.error_lines import first_lines, raise_if_any, shown
from mindbatch.checkpoint.folders.resharded import JOURNAL_NAME, MARKER_NAME, Marker, read_marker
from mindbatch.checkpoint.formats.stored import FileLayout, byte_ranges
from mindbatch.checkpoint.reshard.job import Writing
from mindbatch.checkpoint.reshard.plan import ReshardPlan
from mindbatch.io.closing import Closing
from mindbatch.io.errors import CheckpointError, ConfigError, MindBatchError
from mindbatch.io.storage import Storage, StorageError, is_still, lock, make_durable, writing

PART_SUFFIX = ".part"


def part_of(target: Path) -> Path:
    """The folder in which a target is made, beside the target."""
    return target.with_name(target.name + PART_SUFFIX)


def names_below(folder: Path) -> Iterator[str]:
    """Yields files below a folder, and links whatever they lead to, as paths from there; follows none."""
    for parent, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in (*files, *links):
            yield os.path.relpath(os.path.join(parent, name), folder)


def refuse_foreign(folder: Path, marker: Marker) -> None:
    """ConfigError when the folder holds files that the reshard did not write: it is to be removed."""
    foreign = sorted({*names_below(folder)} - {*marker.files, MARKER_NAME})
    if foreign:
        listed = ", ".join(first_lines(foreign, shown, limit=3, noun="files"))
        raise ConfigError(f"target.dir={folder}: holds {listed}, which reshard did not write; move that away")


def changed_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    listed = [f"{shown(key)[1:-1]} was {_value(old, key)}, now {_value(new, key)}" for key in keys]
    return ", ".join(first_lines(listed, str, limit=4, noun="settings")) or "the source has changed"


def _value(settings: Mapping[str, Any], key: str) -> str:
    value = settings.get(key)
    return shown(value)[1:-1] if isinstance(value, str) else shown(value)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the folder for this process alone; the system gives it back when the process ends.

    Raises:
        ConfigError: another process has it.
        StorageError: the folder cannot be opened.
    """
    with writing(folder):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with writing(folder):
            # Who had the lock may have renamed the folder: it is then the lock of the finished target.
            is_locked = lock(handle) and is_still(handle, folder)
        if not is_locked:
            raise ConfigError(f"{folder}: another reshard is writing here")
        yield
    finally:
        os.close(handle)


def make_folders(folder: Path, storage: Storage) -> None:
    """Makes a folder and those above it that are missing, to last. StorageError when that fails."""
    with writing(folder):
        make_durable(folder, storage)


def remove_tree(folder: Path, storage: Storage, *, last: Iterable[str] = (), keep: bool = False) -> None:
    """Removes what is in a folder, and the folder unless `keep`; links are removed and not followed.

    last: names in it that go after all others are gone for good, so that a removal that was killed, or cut
    short with the power, is known for what it is. StorageError when that fails.
    """
    after = [*last]
    with writing(folder):
        for path in sorted(folder.iterdir(), key=lambda path: (path.name in after, path.name)):
            if path.name in after:
                storage.sync_folder(folder)
            if stat.S_ISDIR(path.lstat().st_mode):
                remove_tree(path, storage)
            else:
                storage.remove(path)
        if not keep:
            storage.remove_folder(folder)


def is_ours(part: Path) -> bool:
    """True if a DIR.part was made by a reshard: it has a journal or a marker, or is empty."""
    names = set(os.listdir(part))
    return (
        not names
        or bool(names & {JOURNAL_NAME, MARKER_NAME})
        or all(name.startswith(f".{JOURNAL_NAME}.") for name in names)
    )


def exists(plan: ReshardPlan) -> bool:
    """True if the target folder is already that of the plan. ConfigError if another must not be replaced."""
    target = plan.target
    if not os.path.lexists(target) or (target.is_dir() and not os.listdir(target)):
        return False
    marker = read_marker(target) if target.is_dir() else None
    if marker is None:
        raise ConfigError(f"target.dir={target}: exists and was not written by reshard; give another folder")
    gone = marker.changed(target) if marker.identity == plan.identity else []
    if marker.identity == plan.identity and not gone:
        return True
    if gone and not plan.replace:
        raise ConfigError(
            f"target.dir={target}: is this reshard, but {shown(gone[0])} is missing or not of the size that "
            f"{MARKER_NAME} says; remove the folder, or give target.replace=true"
        )
    if not plan.replace:
        changed = changed_settings(marker.settings, plan.settings)
        raise ConfigError(
            f"target.dir={target}: holds another reshard ({changed}); give another folder, or "
            "target.replace=true"
        )
    refuse_foreign(target, marker)
    return False


def is_complete(plan: ReshardPlan, part: Path) -> bool:
    """True if an earlier session was killed just before the rename."""
    marker = None if (part / JOURNAL_NAME).exists() else read_marker(part)
    return marker is not None and marker.identity == plan.identity and not marker.changed(part)


def refuse_source_in(part: Path, plan: ReshardPlan) -> None:
    """ConfigError when what is read is in the folder that is written, which is emptied first."""
    for path in sorted(plan.sources):
        if Path(path).resolve().is_relative_to(part):
            raise ConfigError(f"{path}: is in {part}, where the target is made; move the source away")


def keep_name(plan: ReshardPlan, storage: Storage) -> None:
    """Makes the name of a finished target durable, which a killed process may not have done.

    Comes before anything beside it is removed: a power cut might bring that back as the target.
    """
    with writing(plan.target):
        storage.sync_folder(plan.target.parent)


def refuse_changed(plan: ReshardPlan) -> None:
    """CheckpointError when files of the source, of which no digests tell, are not as they were."""
    errors = []
    for path, stamp in plan.stamps.items():
        status = path.stat() if path.exists() else None
        if status is None or (status.st_size, status.st_mtime_ns) != stamp:
            errors.append(f"{path}: was changed while it was read; the same command begins anew")
    raise_if_any(errors)


def remove_displaced(plan: ReshardPlan, storage: Storage) -> None:
    """Removes the target folder's former content, if a kill has left that."""
    part = part_of(plan.target)
    if not part.is_dir() or (part / JOURNAL_NAME).exists():
        return
    if read_marker(part) is not None or not os.listdir(part):
        with locked(part):
            remove_tree(part, storage, last=[MARKER_NAME])


def give_name(plan: ReshardPlan, part: Path, storage: Storage) -> None:
    """Renames the finished folder; a reshard that it replaces is exchanged for it, and then removed."""
    target = plan.target
    gives_way = plan.replace and read_marker(target) is not None
    try:
        storage.sync_folder(part)  # a process that was killed has perhaps just removed the journal
        if gives_way:
            storage.exchange(part, target)
        else:
            storage.replace(part, target)
        storage.sync_folder(target.parent)
    except OSError as error:
        if gives_way and error.errno in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise CheckpointError(
                f"{target}: this file system cannot replace a folder at once; remove it, and the same "
                "command gives the new one its name"
            ) from error
        raise StorageError.writing(target, error) from error
    if gives_way:
        remove_tree(part, storage, last=[MARKER_NAME])


class TargetFiles(Closing):
    """The files below a target folder, opened when they are needed; closing them syncs nothing.

    Threads may share them. All methods but `close` raise StorageError.
    """

    def __init__(self, folder: Path, storage: Storage) -> None:
        self._folder = folder
        self._storage = storage
        self._files: dict[str, int] = {}
        self._lock = Lock()

    def prepare(self, layouts: Mapping[str, FileLayout]) -> None:
        """Makes the files that are missing; all get their full size, with all but the tensors in them."""
        for folder in dict.fromkeys((self._folder / name).parent for name in layouts):
            make_folders(folder, self._storage)
        for name, layout in layouts.items():
            with writing(self._folder / name):
                if not (self._folder / name).exists():
                    self._files[name] = self._storage.create(self._folder / name)
                self._storage.truncate(self._file(name), layout.total_bytes)
                for offset, data in layout.head:
                    self._storage.write_at(self._file(name), data, offset)

    def write(self, target: Writing, start: int, data: memoryview) -> None:
        """Writes a tensor's bytes from `start` on into its file, which exists with its full size."""
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
            _, file = self._files.popitem()
            with contextlib.suppress(OSError):  # what counts was synced, or has gone wrong before
                self._storage.close(file)

    def _file(self, name: str) -> int:
        with self._lock:
            if name not in self._files:
                self._files[name] = self._storage.reopen(self._folder / name)
            return self._files[name]


def refuse_without_space(folder: Path, layouts: Mapping[str, FileLayout]) -> None:
    """Raises MindBatchError, which leaves the job unfinished, if less space is free than is still needed."""
    needed = sum(layout.total_bytes for layout in layouts.values())
    with contextlib.suppress(OSError):
        written = sum(path.stat().st_blocks * 512 for name in layouts if (path := folder / name).exists())
        disk = os.statvfs(folder)
        free = disk.f_bavail * disk.f_frsize
        if needed - written > free:
            raise MindBatchError(
                f"{folder}: {needed - written:,} bytes are still to be written, and "
                f"{free:,} are free on the disk"
            )
