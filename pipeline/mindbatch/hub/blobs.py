"""Fetches files into a hub's cache, laid out as huggingface_hub has it, by names of their listed digests.

A server's answers name no path here: what they may be is known before, and checked after.
"""

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from mindbatch.hub.listings import HuggingFace, ListedFile, ModelScope, Refused
from mindbatch.io.regular_file import digested

_TRIES = 5
"""Number of connections in a row that may end without having brought anything."""
_CHUNK = 1 << 15
"""Bytes read from the network at a time; a part that was cut off is lost."""
_TIMEOUT_SECONDS = 10.0
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EFBIG)
_OTHER_LENGTH = "the hub sent another number of bytes than it announced"


def entry_name(kind: str, name: str) -> str:
    """Names the folder of a model or dataset in the cache, as huggingface_hub does."""
    return f"{kind}s--{name.replace('/', '--')}"


class Blobs:
    """The files of a commit of one model or dataset: contents in blobs/DIGEST, links in snapshots/COMMIT.

    home: of the model or dataset, in the cache.
    """

    def __init__(self, cache: Path, name: str, hub: HuggingFace | ModelScope) -> None:
        entry = entry_name(hub.kind, name)
        self.home = cache / entry
        self.folder = self.home / "snapshots" / hub.commit
        self._blobs, self._locks = self.home / "blobs", cache / ".locks" / entry
        self._hub, self._session = hub, hub.session()

    def fetch(self, listed: ListedFile) -> tuple[Path, str]:
        """The path of a file in the snapshot, and its digest; fetched unless it exists already.

        Raises:
            Refused: what was sent is not what the hub lists.
            OSError: of the network, or the disk.
        """
        name = (listed.digest or "").partition(":")[2] or f"{self._hub.commit}-{listed.file}"
        blob = self._blobs / name
        with self._locked(name):
            if not os.path.lexists(blob):
                self._fetch_blob(blob, listed)
            digest = _verified(blob, listed)
        link = self.folder / listed.file
        _link(link, Path(*[".."] * listed.file.count("/"), "..", "..", "blobs", name))
        return link, digest

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Keeps other processes from the same file; huggingface_hub locks the same way."""
        for folder in (self._locks, self._blobs, self.folder):
            folder.mkdir(parents=True, exist_ok=True)
        with _opened(self._locks / f"{name}.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _fetch_blob(self, blob: Path, listed: ListedFile) -> None:
        """Fetches a file, going on where a connection was cut as long as some of it comes."""
        partial = blob.with_name(f"{blob.name}.incomplete")
        tries = 0
        with _opened(partial) as file:
            if os.fstat(file).st_size > listed.size:
                os.ftruncate(file, 0)
            while (before := os.fstat(file).st_size) < listed.size:
                try:
                    self._go_on(file, before, listed)
                except Refused:
                    partial.unlink()
                    raise
                except OSError as error:
                    tries = tries + 1 if os.fstat(file).st_size == before else 0
                    if error.errno in _DISK or tries == _TRIES:
                        raise
        partial.replace(blob)

    def _go_on(self, file: int, start: int, listed: ListedFile) -> None:
        """Requests the bytes from `start` on, and writes them. OSError if fewer came than were due."""
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={start}-"} if start else {})}
        url = self._hub.url(listed.file)
        with self._session.get(url, headers=headers, stream=True, timeout=_TIMEOUT_SECONDS) as answer:
            if start and answer.status_code == 416:  # nothing behind it, as the server has it
                os.ftruncate(file, 0)
                raise ConnectionError("the server does not go on")
            self._hub.refuse_answer([*answer.history, answer], listed)
            start = _start_of(answer, start, listed)
            os.ftruncate(file, start)
            for chunk in answer.iter_content(_CHUNK):
                start += len(chunk)
                if start > listed.size:
                    raise Refused(f"{listed.file}: {_OTHER_LENGTH}")
                os.pwrite(file, chunk, start - len(chunk))
        if start < listed.size:
            raise ConnectionError("the connection ended early")


def _start_of(answer: Any, start: int, listed: ListedFile) -> int:
    """The position of an answer's first byte in its file.

    Raises:
        Refused: the answer is compressed, or of a file that is longer or shorter than the listed one.
    """
    headers = answer.headers
    if headers.get("Content-Encoding", "identity") != "identity":
        raise Refused(f"{listed.file}: the hub sent it compressed, which was not requested")
    if answer.status_code != 206:
        start, total = 0, headers.get("Content-Length", str(listed.size))
    else:
        first, _, total = headers.get("Content-Range", "").partition("/")
        if not first.startswith(f"bytes {start}-"):
            raise Refused(f"{listed.file}: the hub sent another part of it than was requested")
    if total not in ("*", str(listed.size)):
        raise Refused(f"{listed.file}: {_OTHER_LENGTH}")
    return start


def _verified(blob: Path, listed: ListedFile) -> str:
    """Digests a file. Removes it and raises Refused if the hub lists another digest or size."""
    is_git = listed.digest is not None and listed.digest.startswith("sha1:")
    with _opened(blob, os.O_RDONLY) as file:
        size = os.fstat(file).st_size
        actual = _digest("sha1" if is_git else "sha256", size, partial(os.read, file))
    if listed.digest not in (None, actual) or size != listed.size:
        blob.unlink()
        raise Refused(f"{listed.file}: its digest is not the one that the hub lists; it was removed")
    return actual


def file_digest(path: Path, kind: str) -> str:
    """Digests a file as a hub lists it: KIND:HEX, of sha256, or of sha1 as git has it."""
    with path.open("rb") as file:
        return _digest(kind, path.stat().st_size, file.read)


def _digest(kind: str, size: int, read: Callable[[int], bytes]) -> str:
    """Digests what `read` gives, `size` bytes in all."""
    content = hashlib.new(kind, b"blob %d\0" % size if kind == "sha1" else b"")
    return f"{kind}:{digested(content, read)}"


@contextmanager
def _opened(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> Iterator[int]:
    """A descriptor of a regular file of the cache, made where there is none; no link is followed."""
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise Refused(f"{path}: not a regular file")
        yield file
    finally:
        os.close(file)


def _link(link: Path, target: Path) -> None:
    """Makes a link; replaces an entry of its name."""
    link.parent.mkdir(parents=True, exist_ok=True)
    partial = link.with_name(f".{link.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        partial.unlink()
    partial.symlink_to(target)
    partial.replace(link)
