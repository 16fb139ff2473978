"""Opening regular files only, without waiting: up to a bound to be read, through no link to be written."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

_CHUNK_BYTES = 1 << 22


class Digest(Protocol):
    """A digest of hashlib, or one that works alike."""

    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


def open_regular(path: Path) -> int:
    """Opens a file for reading, through a symbolic link too.

    Raises:
        OSError: the file cannot be opened; for a pipe, device or socket "not a regular file".
    """
    _refuse_special(path, os.stat(path).st_mode)  # before it is opened: opening can wait, or start a device
    return _opened(path, os.O_RDONLY)


def _opened(path: Path, flags: int) -> int:
    """Opens a regular file, and checks again that it is one: another may have taken its name."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, 0o666)
    try:
        _refuse_special(path, os.fstat(descriptor).st_mode)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_special(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def check_own(path: Path) -> None:
    """Raises OSError if `path` exists and is no regular file; a link is none."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, "a symbolic link, which is not followed", str(path))
    _refuse_special(path, mode)


def open_own(path: Path, flags: int) -> int:
    """Opens a file of ours for writing, with the `flags` of os.open, through no link.

    Raises:
        OSError: the file cannot be opened, or is no regular file.
    """
    check_own(path)
    return _opened(path, flags | os.O_NOFOLLOW)


def first_bytes(path: Path, count: int) -> bytes:
    """Returns the first `count` bytes of a file, or all. Raises OSError as `open_regular`."""
    with open(open_regular(path), "rb") as file:
        return file.read(min(count, os.fstat(file.fileno()).st_size))  # read() allocates its argument


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Returns the content of a file. Raises OSError as `open_regular`, and if it exceeds `max_bytes`."""
    with open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise OSError(errno.EFBIG, f"{size} bytes; at most {max_bytes} are allowed", str(path))
        return file.read(size)


def digested(content: Digest, read: Callable[[int], bytes]) -> str:
    """Adds to a digest what `read(count)` gives until it gives nothing; returns the digest in hex."""
    while chunk := read(_CHUNK_BYTES):
        content.update(chunk)
    return content.hexdigest()


def size_and_digest(path: Path) -> tuple[int, str]:
    """Returns the size of a file and its XXH3-128 in hex. Raises OSError as `open_regular`."""
    import xxhash

    with open(open_regular(path), "rb") as file:
        digest = digested(xxhash.xxh3_128(), file.read)
        return file.tell(), digest
