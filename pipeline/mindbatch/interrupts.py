"""Ctrl-C while MindSpore runs: it takes that signal over in every run, and this gives it back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers


@contextmanager
def interruptible() -> Iterator[None]:
    """Within, an interrupt raises KeyboardInterrupt as soon as MindSpore has returned.

    Whenever a graph runs, MindSpore 2.9 installs its own handler for SIGINT, which sends the process SIGTERM:
    it would die on the spot, with half a file beside the output. So SIGTERM is answered like SIGINT meanwhile
    (unless the program has a handler of its own for it), and SIGINT gets its old handler back afterwards.
    Does nothing in threads other than the main one, which may not set handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    on_interrupt, on_terminate = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    answers_both = callable(on_interrupt) and on_terminate == signal.SIG_DFL
    if answers_both:
        signal.signal(signal.SIGTERM, on_interrupt)
    try:
        yield
    finally:
        try:
            if on_interrupt is not None:
                _set(signal.SIGINT, on_interrupt)
        finally:
            if answers_both:
                _set(signal.SIGTERM, signal.SIG_DFL)


def _set(number: int, handler: Handler) -> None:
    """Sets a handler, although a signal that has just come may raise instead."""
    try:
        signal.signal(number, handler)
    except KeyboardInterrupt:
        signal.signal(number, handler)
        raise
