"""Defers Ctrl-C and SIGTERM while MindSpore runs, as its own handler would take them."""

import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from mindbatch.io.errors import EXIT_INTERRUPTED, EXIT_TERMINATED

Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers

DEFERRED_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SIGACTION_BYTES = 512  # enough for a struct sigaction of any C library


class Terminated(KeyboardInterrupt):
    """SIGTERM: an interrupt too, after which files are cleaned up, with an exit code of its own."""


def interrupt_outcome(kind: type[KeyboardInterrupt]) -> tuple[str, int]:
    if issubclass(kind, Terminated):
        return "terminated", EXIT_TERMINATED
    return "interrupted", EXIT_INTERRUPTED


class SignalNotes:
    """Handlers for SIGINT and SIGTERM that also record the signal in `came`.

    An import of a C extension turns the exception into an ImportError; the record remains.
    """

    def __init__(self) -> None:
        self.came: type[KeyboardInterrupt] | None = None

    def install(self) -> None:
        """Answers both signals from now on; SIGINT only if the process does not ignore it."""
        signal.signal(signal.SIGTERM, self._on_terminate)
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._on_interrupt)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> NoReturn:
        self.came = KeyboardInterrupt
        raise KeyboardInterrupt

    def _on_terminate(self, number: int, frame: FrameType | None) -> NoReturn:
        self.came = Terminated
        raise Terminated


signal_notes = SignalNotes()
"""Signal notes of this process; the console script installs them."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Defers SIGINT and SIGTERM to the end of the block, where the program's handlers get them.

    Whenever a graph runs, MindSpore 2.9 installs its own handler for SIGINT, which sends the process SIGTERM:
    it would die on the spot, with half a file beside the output. The threads that it starts meanwhile
    block the signals too (a thread inherits that), and so do those of the kernels. An older thread, such as
    NumPy's, may still take a SIGINT that turns into a SIGTERM: where the program has no handler for that, it
    gets the one for SIGINT meanwhile.
    Does nothing in threads other than the main one, which may not set handlers: see `sigint_kept`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    on_interrupt = signal.getsignal(signal.SIGINT)
    with sigterm_as_sigint():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, DEFERRED_SIGNALS)
        try:
            yield
        finally:
            if on_interrupt is not None:
                _set(signal.SIGINT, on_interrupt)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)  # what has come meanwhile is raised here


@contextmanager
def sigterm_as_sigint() -> Iterator[None]:
    """Gives SIGTERM the program's handler for SIGINT within the block, if it has none: MindSpore sends
    SIGTERM.

    Does nothing in threads other than the main one.
    """
    on_interrupt, on_terminate = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    in_main = threading.current_thread() is threading.main_thread()
    if not (in_main and callable(on_interrupt) and on_terminate == signal.SIG_DFL):
        yield
        return
    signal.signal(signal.SIGTERM, on_interrupt)
    try:
        yield
    finally:
        _set(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def sigint_kept() -> Iterator[None]:
    """Restores the process's handler of SIGINT at the end, in whatever thread MindSpore has changed it."""
    libc, before = ctypes.CDLL(None), ctypes.create_string_buffer(_SIGACTION_BYTES)
    libc.sigaction(signal.SIGINT, None, before)
    try:
        yield
    finally:
        libc.sigaction(signal.SIGINT, before, None)


def _set(number: int, handler: Handler) -> None:
    """Sets a handler, although a signal that has just come may raise instead."""
    try:
        signal.signal(number, handler)
    except KeyboardInterrupt:
        signal.signal(number, handler)
        raise
