"""Opening files of tensors, whichever of the formats they are in."""

import os
import resource
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TypeVar

from mindbatch.checkpoint.formats.safetensors_file import open_safetensors
from mindbatch.checkpoint.formats.stored import StoredFile
from mindbatch.io.closing import Closing
from mindbatch.io.errors import CheckpointError
from mindbatch.io.foreign_formats import CONVERSION_HINT, PICKLE_SUFFIXES, PYTORCH_SUFFIXES, foreign_file

Item = TypeVar("Item", bound=Hashable)
Result = TypeVar("Result")


def in_threads(work: Callable[[Item], Result], items: Iterable[Item]) -> dict[Item, Result]:
    """The result of `work` for each item, in threads, as many as there are processors.

    Reading and hashing leave the interpreter to the other threads.
    """
    distinct = list(items)
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    try:
        return dict(zip(distinct, pool.map(work, distinct), strict=True))
    finally:
        pool.shutdown(cancel_futures=True)


SUFFIXES = (".safetensors", ".ckpt")
_OTHERS = 256  # files that are open besides: pipes, logs, libraries
_NEEDED = f"must be a file of tensors, {', '.join(SUFFIXES)} or PyTorch's {', '.join(PYTORCH_SUFFIXES)}"


def open_tensor_file(path: str | os.PathLike[str]) -> StoredFile:
    """Opens and checks a file of tensors, by its ending; what they hold is not read.

    CheckpointError for a damaged file or one of another format.
    """
    path = Path(path)
    if path.suffix == ".safetensors":
        return open_safetensors(path)
    if path.suffix == ".ckpt":  # these two have readers of their own, which most folders do not need
        from mindbatch.checkpoint.formats.ckpt_file import open_ckpt

        return open_ckpt(path)
    if path.suffix in PYTORCH_SUFFIXES:
        from mindbatch.checkpoint.formats.pytorch_file import open_pytorch

        return open_pytorch(path)
    if path.suffix in PICKLE_SUFFIXES:
        raise CheckpointError(f"{path}: {CONVERSION_HINT.format(needed=_NEEDED)}")
    raise CheckpointError(f"{path}: {foreign_file(path) or _NEEDED}")


class OpenFiles(Closing):
    """Files of tensors by path, opened when needed and kept open within `with`; threads may share them."""

    def __init__(self) -> None:
        self._files: dict[str, StoredFile] = {}
        self._lock = Lock()

    def __getitem__(self, path: str) -> StoredFile:
        with self._lock:
            if path not in self._files:
                self._files[path] = open_tensor_file(path)
            return self._files[path]

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def allow_open_files(count: int) -> None:
    """Raises the limit of this process, and of those it will start, where it is too low for `count` more.

    It stays as it is where the system allows no more; opening a file says so then.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHERS
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
