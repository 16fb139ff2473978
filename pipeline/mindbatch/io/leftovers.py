"""Temporary files and folders, and the removal of those that killed processes have left.

Whoever uses one holds a lock on it, which ends with the process however that ends. So what nobody holds has
no owner any more, also where process numbers say nothing: in containers, and after a restart of the machine.
"""

import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_PREFIX = "mindbatch-"


class TemporaryFolder:
    """A folder that nobody else may look into; it is gone after `with`, `remove`, or a later one's making."""

    def __init__(self, prefix: str = _PREFIX, parent: Path | None = None) -> None:
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Removes it, once; in a forked process it stays the parent's."""
        if self._owner == os.getpid():
            self._owner = 0
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._file)


def hold(file: int) -> bool:
    """Holds an open file or folder until it is closed; False where somebody has removed it before."""
    with suppress(OSError):  # a file system without locks: then nobody removes it either
        fcntl.flock(file, fcntl.LOCK_EX)
    return os.fstat(file).st_nlink > 0


def remove_abandoned(folder: Path, is_ours: Callable[[str], object]) -> None:
    """Removes files and folders of this user that nobody holds; what cannot be removed stays.

    is_ours: whether a name is one that only `hold`ers give.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for path in [entry.path for entry in entries if is_ours(entry.name)]:
            with suppress(OSError):
                _remove_if_abandoned(path)


def _remove_if_abandoned(path: str) -> None:
    """Raises OSError where it is held, or is a link."""
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
