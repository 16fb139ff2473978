"""Standard input, output and error as a command may find them: closed, full, or without a reader.

Text that standard output does not take ends a command with a line and an exit code; messages that standard
error does not take are lost, and the command goes on. A reader that ends (BrokenPipeError) is no fault.
"""

import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, TextIO

from mindbatch.io.errors import EXIT_FAILED, OutputError
from mindbatch.io.screen_text import say

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_OUTPUT, _ERROR = 1, 2


def watch_streams() -> None:
    """Opens closed ones on the null device, before a file of ours is opened under their number, and replaces
    standard output and error by streams that know what to do when they cannot be written."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            _open_null(number)
            stream = open(number, mode, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
    sys.stdout = _watched(sys.stdout, _StandardOutput(_OUTPUT, "w", closefd=False))
    sys.stderr = _watched(sys.stderr, _Messages(_ERROR, "w", closefd=False))


def hold_libraries_back() -> None:
    """Leads nowhere what libraries write to standard error past Python, such as the panics of those in Rust.

    What is written to sys.stderr comes where it came before.
    """
    before, nowhere = sys.stderr, os.open(os.devnull, os.O_WRONLY)
    before.flush()
    sys.stderr = _watched(before, _Messages(os.dup(before.fileno()), "w"))
    os.dup2(nowhere, before.fileno())
    os.close(nowhere)


def run_tool(main: Callable[[], int | None], name: str) -> NoReturn:
    """Runs a program of its own and ends the process with its exit code, or 1 if its output went nowhere.

    name: of the program, before the message about its output.
    """
    watch_streams()
    try:
        try:
            code = main()
        finally:
            sys.stdout.flush()
    except OutputError as error:
        say(*error.faults, name=name)
        code = error.exit_code
    except BrokenPipeError:
        code = EXIT_FAILED
    end_output()
    sys.exit(code)


def end_output() -> None:
    """Writes what is left of standard output; if that cannot be, which has been reported, it is dropped, so
    that the interpreter's last flush does not complain too."""
    try:
        sys.stdout.flush()
    except (OSError, OutputError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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


def _open_null(number: int) -> None:
    """Standard output cannot be written then, in a program that takes over the process either."""
    descriptor = os.open(os.devnull, os.O_RDONLY if number == _OUTPUT else os.O_RDWR)
    if descriptor != number:
        os.dup2(descriptor, number)
        os.close(descriptor)


def _watched(stream: TextIO, raw: io.FileIO) -> TextIO:
    """A stream like the interpreter's own, over `raw`."""
    assert isinstance(stream, io.TextIOWrapper)
    return io.TextIOWrapper(
        raw if stream.write_through else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _StandardOutput(io.FileIO):
    """Standard output. What it does not take raises OutputError, which no code takes for an error of a file
    that it writes."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            reason = "it is closed" if error.errno == errno.EBADF else error.strerror
            raise OutputError(f"standard output: cannot be written ({reason})") from error


class _Messages(io.FileIO):
    """Standard error. What it does not take is lost."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError:
            return memoryview(data).nbytes
