"""Standard input, output and error as a command may find them: closed, full, or without a reader."""

import os
import sys


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


def discard_output() -> None:
    """Points standard output at nothing, so that the interpreter's last flush does not complain too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
