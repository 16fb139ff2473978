"""Durable files: every change goes through a `Storage`, so that tests can fail or kill at any of them.

A process holds a lock on its temporary files and folders, which ends with the process. So an unlocked one has
no owner any more; process ids would not tell in containers, or after a restart of the machine.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import io
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from mindbatch.io.errors import MindBatchError
from mindbatch.io.regular_file import check_own, open_own

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

BUFFERED_BYTES = 1 << 20
_TEMPORARY_NAME = re.compile(r"\.(.+)\.[0-9a-f]{16}", re.DOTALL)
# What a file system says that cannot sync a folder; nothing more can be done there.
_CANNOT_SYNC_FOLDERS = {errno.EINVAL, errno.ENOTSUP}
_HERE = -100  # AT_FDCWD of Linux
_RENAME_EXCHANGE = 2


class StorageError(MindBatchError):
    """A file that cannot be written or read back: a full or broken disk, or no permission."""

    @classmethod
    def writing(cls, path: Path, error: OSError) -> StorageError:
        return cls(f"{path}: cannot be written ({reason_of(error)})")

    @classmethod
    def reading(cls, path: Path, error: OSError) -> StorageError:
        return cls(f"{path}: cannot be read ({reason_of(error)})")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an OSError of the block into a StorageError that names the path."""
    try:
        yield
    except OSError as error:
        raise StorageError.writing(path, error) from error


def make_folder(path: Path) -> None:
    """Makes a folder, and those above it, where there is none. Raises StorageError."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


def reason_of(error: OSError) -> str:
    """Returns the system's reason for an error, without number and file name."""
    return error.strerror or str(error)


class Storage:
    """The operations that change files and folders, as the system does them. All raise OSError.

    Files are named by descriptors, which the caller closes. Only regular files are opened, and through
    no link.
    """

    def create(self, path: Path) -> int:
        """Opens a new file for writing; FileExistsError when there is one."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

    def append(self, path: Path) -> int:
        """Opens a file for appending; creates it if it does not exist."""
        return open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def reopen(self, path: Path) -> int:
        """Opens an existing file for writing at positions."""
        return open_own(path, os.O_WRONLY)

    def write(self, file: int, data: bytes) -> None:
        """Writes all of `data`. A failure may leave any part of it written."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]

    def write_at(self, file: int, data: ReadableBuffer, offset: int) -> None:
        """Writes all of `data` from a position on. A failure may leave any part of it written."""
        rest = memoryview(data).cast("B")
        while rest:
            written = os.pwrite(file, rest, offset)
            rest, offset = rest[written:], offset + written

    def sync(self, file: int) -> None:
        """Returns once the file's content is on the disk.

        After a failure the content is unknown: the system forgets that pages were not written, and another
        sync would succeed. Write the file again instead.
        """
        os.fsync(file)

    def truncate(self, file: int, size: int) -> None:
        """Truncates a file to `size` bytes, or extends it with zeros."""
        os.ftruncate(file, size)

    def close(self, file: int) -> None:
        os.close(file)

    def replace(self, source: Path, target: Path) -> None:
        """Renames `source` to `target`, atomically."""
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def exchange(self, first: Path, second: Path) -> None:
        """Exchanges the names of two folders or files, atomically; EINVAL if the file system cannot."""
        _rename_at(first, second, _RENAME_EXCHANGE)

    def remove_folder(self, path: Path) -> None:
        os.rmdir(path)

    def make_folder(self, path: Path) -> None:
        """Makes a folder in one that exists; FileExistsError when there is one."""
        os.mkdir(path)

    def sync_folder(self, folder: Path) -> None:
        """Makes earlier changes of the names in a folder durable: files created, renamed and removed."""
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in _CANNOT_SYNC_FOLDERS:
                raise
        finally:
            os.close(handle)


def _rename_at(first: Path, second: Path, flags: int) -> None:
    """Linux's renameat2, which Python does not have."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    number = errno.ENOSYS
    if function is not None:
        if not function(_HERE, os.fsencode(first), _HERE, os.fsencode(second), flags):
            return
        number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), str(first), None, str(second))


class WholeFile(io.BufferedIOBase):
    """A binary file that gets its name once it is complete and durable, or not at all.

    Within `with`, data goes to a hidden file in the same folder. At the end it is synced and renamed, and the
    folder synced. An exception, an interrupt too, removes it and keeps the earlier file; so does closing it
    early. A killed process leaves the hidden file, which the next one that writes the file removes.

    Raises StorageError, also when something else than a regular file has the name.
    """

    def __init__(self, path: Path, storage: Storage | None = None) -> None:
        self._path = path
        self._storage = storage or Storage()
        self._temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        self._is_created = False
        self._file: int | None = None
        self._taken = bytearray()
        self._num_bytes = 0

    def __enter__(self) -> WholeFile:
        try:
            with writing(self._path):
                self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                with writing(self._path):
                    self._finish()
        finally:
            self.close()

    def _open(self) -> None:
        check_own(self._path)
        remove_abandoned(self._path.parent, lambda name: leftover_of(name) == self._path.name)
        self._is_created = True  # first: an interrupt may come when the file exists already
        self._file = self._storage.create(self._temporary)
        if not hold(self._file):  # somebody who looked at that moment took it for one that was left
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def _finish(self) -> None:
        """Syncs the content, renames the file, then syncs the folder, in this order."""
        self.flush()
        file, self._file = self._file, None
        if file is None:
            raise ValueError("the file was closed before it was whole")
        try:
            self._storage.sync(file)
        finally:
            self._storage.close(file)
        self._storage.replace(self._temporary, self._path)
        self._is_created = False
        self._storage.sync_folder(self._path.parent)

    def write(self, data: ReadableBuffer, /) -> int:
        """Buffers bytes; `flush`, or a full buffer, writes them to the hidden file."""
        if self._file is None:
            raise ValueError("write to a file that is not open")
        chunk = memoryview(data).cast("B")
        self._taken += chunk  # copied: some libraries' bytes hold far more memory than they are long
        self._num_bytes += len(chunk)
        if len(self._taken) >= BUFFERED_BYTES:
            self.flush()
        return len(chunk)

    def flush(self) -> None:
        """Writes the buffer to the hidden file, without a sync."""
        if self._file is None or not self._taken:
            return
        data = bytes(self._taken)
        self._taken.clear()
        with writing(self._path):
            self._storage.write(self._file, data)

    @property
    def name(self) -> str:
        return str(self._path)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._num_bytes

    def close(self) -> None:
        """Removes the file, unless it has its name already."""
        self._taken.clear()
        file, self._file = self._file, None
        with suppress(OSError):
            if file is not None:
                self._storage.close(file)
        if self._is_created:
            self._is_created = False
            with suppress(OSError):
                self._storage.remove(self._temporary)
        super().close()


def write_whole(path: Path, data: bytes, storage: Storage | None = None) -> None:
    """Writes a file so that a crash leaves the old one or the new one, whole. Raises StorageError."""
    with WholeFile(path, storage) as file:
        file.write(data)


def make_durable(folder: Path, storage: Storage) -> None:
    """Makes a folder and those above it that are missing, from the top, to last. Raises OSError.

    The folder above is synced even when there is nothing to make: a session that was killed may have made it.
    """
    if not folder.parent.exists():
        make_durable(folder.parent, storage)
    if not folder.is_dir():
        storage.make_folder(folder)
    try:
        storage.sync_folder(folder.parent)
    except PermissionError:  # a folder one may pass through but not list; its owner made what is in it
        if os.access(folder.parent, os.R_OK):
            raise


def leftover_of(name: str) -> str | None:
    """Returns the file that a killed process was writing to a hidden one called `name`; None for others."""
    match = _TEMPORARY_NAME.fullmatch(name)
    return match[1] if match else None


def remove_leftovers(folder: Path, storage: Storage, is_ours: Callable[[str], bool]) -> None:
    """Removes the hidden files that killed processes left in a folder where nobody else writes now: those of
    files with names of ours. Raises StorageError."""
    with writing(folder):
        for path in sorted(folder.iterdir()):
            name = leftover_of(path.name)
            if name is not None and is_ours(name) and stat.S_ISREG(path.lstat().st_mode):
                storage.remove(path)


class TemporaryFolder:
    """A folder that nobody else may look into; it is gone after `with`, `remove`, or a later one's making."""

    def __init__(self, prefix: str = "mindbatch-", parent: Path | None = None) -> None:
        """parent: None is the system's folder for temporary files. Raises OSError."""
        parent = parent or Path(tempfile.gettempdir())
        remove_abandoned(parent, re.compile(rf"{re.escape(prefix)}[0-9a-f]{{16}}").fullmatch)
        self._owner = os.getpid()
        while True:
            self.path = parent / f"{prefix}{secrets.token_hex(8)}"
            self.path.mkdir(0o700)
            try:
                self._file = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:  # somebody has removed it before it was held
                continue
            if hold(self._file):
                return
            os.close(self._file)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *error: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Removes it, once; in a forked process it stays the parent's."""
        if self._owner == os.getpid():
            self._owner = 0
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._file)


def lock(file: int, *, shared: bool = False) -> bool:
    """Locks an open file or folder until it is closed; False where another process has it. Raises OSError."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True


def is_still(file: int, path: Path) -> bool:
    """True if an open file or folder still has its name: who had its lock may have removed or renamed it."""
    try:
        return os.path.samestat(os.fstat(file), path.lstat())
    except FileNotFoundError:
        return False


def hold(file: int) -> bool:
    """Locks an open file or folder until it is closed; False if another process has removed it."""
    with suppress(OSError):  # a file system without locks: then nobody removes it either
        fcntl.flock(file, fcntl.LOCK_EX)
    return os.fstat(file).st_nlink > 0


def remove_abandoned(folder: Path, is_ours: Callable[[str], object]) -> None:
    """Removes unlocked files and folders of this user, with names that only our temporary ones have."""
    with suppress(OSError), os.scandir(folder) as entries:
        for path in [entry.path for entry in entries if is_ours(entry.name)]:
            with suppress(OSError):
                _remove_if_abandoned(path)


def _remove_if_abandoned(path: str) -> None:
    """Removes an unlocked file or folder. Raises OSError if it is locked, or a link."""
    is_folder = stat.S_ISDIR(os.lstat(path).st_mode)
    way = os.O_RDONLY | os.O_DIRECTORY if is_folder else os.O_RDWR | os.O_NONBLOCK
    file = os.open(path, way | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        if status.st_uid != os.geteuid() or not (is_folder or stat.S_ISREG(status.st_mode)):
            return
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_folder:
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
    finally:
        os.close(file)
