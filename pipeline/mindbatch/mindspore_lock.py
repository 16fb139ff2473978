"""MindSpore for one thread at a time, and only in the process that loaded it."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mindbatch.io.errors import MindBatchError


class FairLock:
    """A lock that its holder does not get again before those who wait for it.

    The thread that computes asks again as soon as it has released: with `threading.Lock` alone all others
    would wait until its last step.
    """

    def __init__(self) -> None:
        self._next = threading.Lock()  # of the first of those who wait
        self._lock = threading.Lock()
        self._holder: int | None = None

    def __enter__(self) -> None:
        if self._holder == threading.get_ident():
            raise MindBatchError("a function that is called while the model computes may not call a model")
        with self._next:
            self._lock.acquire()
        self._holder = threading.get_ident()

    def __exit__(self, *error: object) -> None:
        self._holder = None
        self._lock.release()


mindspore_lock = FairLock()
"""Held while a model is loaded, a graph compiled, a step computed.

MindSpore 2.9 ends the process where two threads compile or run at the same time, of one model or of two. One
after the other they may: a graph may be run by another thread than compiled it.
"""

_process: int | None = None  # the one in which MindSpore was first used


@contextmanager
def loading() -> Iterator[None]:
    """Holds the lock while a model is loaded.

    Raises:
        MindBatchError: this process was forked from one that had loaded a model.
    """
    global _process
    _process = _process or os.getpid()
    refuse_forked(_process)
    with mindspore_lock:
        yield


def refuse_forked(process: int) -> None:
    """Refuses to compute in another process than a model was loaded in: it would wait for threads that a
    fork does not copy.

    Raises:
        MindBatchError: this is another process.
    """
    if os.getpid() != process:
        raise MindBatchError(
            f"a model was loaded in process {process} and cannot run in process {os.getpid()}, which was "
            'forked from it; load the model in the process that uses it (multiprocessing: the "spawn" start '
            "method)"
        )
