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


def hold_libraries_back() -> None:
    """Leads nowhere what libraries write to standard error past Python, such as the panics of those in Rust.

    What is written to sys.stderr comes where it came before.
    """
    before, nowhere = sys.stderr, os.open(os.devnull, os.O_WRONLY)
    before.flush()
    ours = open(  # noqa: SIM115
        os.dup(before.fileno()), "w", buffering=1, encoding=before.encoding, errors=before.errors
    )
    os.dup2(nowhere, before.fileno())
    os.close(nowhere)
    sys.stderr = ours


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
    ours = _standard_error()
    saved = {number: os.dup(number) for number in {1, 2, ours}}
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in saved:
            os.dup2(nothing, number)
        with open(saved[ours], "w", encoding="utf-8", errors="replace", closefd=False) as terminal:
            yield terminal
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in saved.items():
            os.dup2(descriptor, number, inheritable=number <= 2)
        for descriptor in (*saved.values(), nothing):
            os.close(descriptor)


def _standard_error() -> int:
    """The descriptor that messages are written to; see `hold_libraries_back`."""
    try:
        return sys.stderr.fileno()
    except (OSError, ValueError):  # one of a program's own
        return 2


def discard_output() -> None:
    """Points standard output at nothing, so that the interpreter's last flush does not complain too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
