"""Standard input, output and error as a command may find them: closed, full, or without a reader."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


def open_closed_streams() -> None:
    """Leads closed ones to the null device, before a file of ours is opened under their number."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is not None:
            continue
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor != number:
            os.dup2(descriptor, number)
            os.close(descriptor)
        stream = open(number, mode, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)


def output_fails_with(error: OSError) -> bool:
    """Whether an error, which no file of ours has, came of writing to standard output."""
    try:
        sys.stdout.flush()
    except OSError as again:
        return error.filename is None and again.errno == error.errno
    return False


@contextmanager
def discarded_output() -> Iterator[TextIO]:
    """Drops what anybody writes to standard output and error, other processes too; gives standard error."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        with open(saved[1], "w", encoding="utf-8", errors="replace", closefd=False) as terminal:
            yield terminal
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in enumerate(saved, 1):
            os.dup2(descriptor, number)
        for descriptor in (*saved, nothing):
            os.close(descriptor)


def discard_output() -> None:
    """Points standard output at nothing, so that the interpreter's last flush does not complain too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
