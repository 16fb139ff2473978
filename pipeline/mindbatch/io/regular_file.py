"""Opening regular files only, without waiting: up to a bound to be read, through no link to be written."""

import errno
import os
import stat
from pathlib import Path

_CHUNK_BYTES = 1 << 22


def open_regular(path: Path) -> int:
    """A descriptor that reads the file, a symbolic link followed. Raises OSError: it cannot be opened; for a
    pipe, device or socket "not a regular file"."""
    _refuse_special(path, os.stat(path).st_mode)  # before it is opened: opening can wait, or start a device
    return _opened(path, os.O_RDONLY)


def _opened(path: Path, flags: int) -> int:
    """A descriptor of a regular file, whatever has taken its name since it was looked at."""
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
    """OSError when there is something at `path` that is no regular file; a link is one such thing."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, "a symbolic link, which is not followed", str(path))
    _refuse_special(path, mode)


def open_own(path: Path, flags: int) -> int:
    """A descriptor that writes to a file of ours, with the `flags` of os.open; no link is followed. Raises
    OSError: it cannot be opened, or is no regular file."""
    check_own(path)
    return _opened(path, flags | os.O_NOFOLLOW)


def first_bytes(path: Path, count: int) -> bytes:
    """The file's first bytes, `count` or as many as it has. OSError as of open_regular."""
    with open(open_regular(path), "rb") as file:
        return file.read(min(count, os.fstat(file.fileno()).st_size))  # read() allocates what it is asked for


def read_regular(path: Path, max_bytes: int) -> bytes:
    """The whole file. OSError as of open_regular, and when it is larger than `max_bytes`."""
    with open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise OSError(errno.EFBIG, f"{size} bytes; at most {max_bytes} are allowed", str(path))
        return file.read(size)


def size_and_digest(path: Path) -> tuple[int, str]:
    """Bytes of a file and their XXH3-128, in hex. OSError as of open_regular."""
    import xxhash

    state, size = xxhash.xxh3_128(), 0
    with open(open_regular(path), "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            state.update(chunk)
            size += len(chunk)
    return size, state.hexdigest()
