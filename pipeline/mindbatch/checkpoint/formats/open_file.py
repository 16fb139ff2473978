"""Opens files of tensors of any format."""

import os
import resource
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TypeVar

from mindbatch.checkpoint.formats.registry import format_of, needed_files
from mindbatch.checkpoint.formats.stored import StoredFile
from mindbatch.io.closing import Closing
from mindbatch.io.errors import CheckpointError

Item = TypeVar("Item", bound=Hashable)
Result = TypeVar("Result")


def in_threads(work: Callable[[Item], Result], items: Iterable[Item]) -> dict[Item, Result]:
    """Does `work` for each item in as many threads as there are processors.

    Reading and hashing release the interpreter's lock.
    """
    distinct = list(items)
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    try:
        return dict(zip(distinct, pool.map(work, distinct), strict=True))
    finally:
        pool.shutdown(cancel_futures=True)


_OTHERS = 256  # files that are open besides: pipes, logs, libraries


def open_tensor_file(path: str | os.PathLike[str]) -> StoredFile:
    """Opens and checks a file of tensors by its suffix, without reading the tensors.

    Raises:
        CheckpointError: the file is damaged, or of a format that is not read.
    """
    path = Path(path)
    known = format_of(path)
    if known is not None and known.open is not None:
        return known.open(path)
    refusal = known.refusal if known is not None else None
    raise CheckpointError(f"{path}: {(refusal or '{needed}').format(needed=needed_files())}")


OpenFile = Callable[[str], StoredFile]


class OpenFiles(Closing):
    """Files of tensors by path, opened when needed and kept open within `with`; threads may share them."""

    def __init__(self, opened: OpenFile = open_tensor_file) -> None:
        """opened: function that opens a file."""
        self._opened = opened
        self._files: dict[str, StoredFile] = {}
        self._lock = Lock()

    def __getitem__(self, path: str) -> StoredFile:
        with self._lock:
            if path not in self._files:
                self._files[path] = self._opened(path)
            return self._files[path]

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def allow_open_files(count: int) -> None:
    """Raises the limit of open files of this process and its children, if `count` more exceed it.

    If the system allows no more, opening a file will fail and say so.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHERS
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
