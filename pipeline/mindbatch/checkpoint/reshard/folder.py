"""The folders of a reshard: the finished one with its marker, and DIR.part beside it while it is made."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.faults import first_lines, shown
from mindbatch.checkpoint.folders.reshard_marker import JOURNAL_NAME, MARKER_NAME, Marker
from mindbatch.errors import ConfigError
from mindbatch.storage import Storage, StorageError

PART_SUFFIX = ".part"
_HELD = {errno.EAGAIN, errno.EACCES}


def part_of(target: Path) -> Path:
    """The folder in which a target is made."""
    return target.with_name(target.name + PART_SUFFIX)


def names_below(folder: Path) -> Iterator[str]:
    """All files below a folder, and links whatever they lead to, as paths from there; none is followed."""
    for place, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in (*files, *links):
            yield os.path.relpath(os.path.join(place, name), folder)


def refuse_foreign(folder: Path, marker: Marker) -> None:
    """ConfigError when the folder holds files that the reshard did not write: it is to be removed."""
    foreign = sorted({*names_below(folder)} - {*marker.files, MARKER_NAME})
    if foreign:
        listed = ", ".join(first_lines(foreign, shown, limit=3, noun="files"))
        raise ConfigError(f"target.dir={folder}: holds {listed}, which reshard did not write; move that away")


def changed_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """What is different between the settings of two reshards, on one line."""
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
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise StorageError.writing(folder, error) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_it = _is_still(handle, folder)
        except OSError as error:
            if error.errno not in _HELD:
                raise StorageError.writing(folder, error) from error
            is_it = False
        if not is_it:
            raise ConfigError(f"{folder}: another reshard is writing here")
        yield
    finally:
        os.close(handle)


def _is_still(handle: int, folder: Path) -> bool:
    """Whether the folder has not got another name meanwhile."""
    try:
        return os.path.samestat(os.fstat(handle), folder.lstat())
    except FileNotFoundError:
        return False


def make_folders(folder: Path, storage: Storage) -> None:
    """Makes a folder and those above it that are missing, to last. StorageError when that fails."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        try:
            with contextlib.suppress(FileExistsError):
                storage.make_folder(path)
            storage.sync_folder(path.parent)
        except OSError as error:
            raise StorageError.writing(path, error) from error


def remove_tree(folder: Path, storage: Storage, *, last: Iterable[str] = (), keep: bool = False) -> None:
    """Removes what is in a folder, and the folder unless `keep`; links are removed and not followed.

    last: names in it that go after all others are gone for good, so that a removal that was killed, or cut
    short with the power, is known for what it is. StorageError when that fails.
    """
    order = [*last]
    try:
        for path in sorted(folder.iterdir(), key=lambda path: (path.name in order, path.name)):
            if path.name in order:
                storage.sync_folder(folder)
            if stat.S_ISDIR(path.lstat().st_mode):
                remove_tree(path, storage)
            else:
                storage.remove(path)
        if not keep:
            storage.remove_folder(folder)
    except OSError as error:
        raise StorageError.writing(folder, error) from error


def marker_json(content: Mapping[str, Any]) -> bytes:
    """The content of a marker file."""
    return (json.dumps(content, indent=1) + "\n").encode()


def is_ours(part: Path) -> bool:
    """Whether a DIR.part was made by a reshard: it has a journal or a marker, or is empty."""
    names = set(os.listdir(part))
    return (
        not names
        or bool(names & {JOURNAL_NAME, MARKER_NAME})
        or all(name.startswith(f".{JOURNAL_NAME}.") for name in names)
    )
