"""The only module that writes to the terminal: escaped text, one error a line, of bounded length and number.

The standard streams may be closed, full, or without a reader. If standard output fails, the command ends with
an error line and its exit code; if standard error fails, messages are lost and the command goes on. A reader
that ends (BrokenPipeError) is no error.
"""

import errno
import io
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, cast

from mindbatch.io.errors import EXIT_UNFINISHED, OutputError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

SHORTEST = 4
"""Minimum length of a hidden value; shorter ones occur in words of messages."""

_SURE = 8  # characters of a value that are taken for it where a message was cut
_CUT = re.compile(r"\.\.\.| \.\.\. \(|\Z")
_hidden: dict[str, str] = {}


def hide(value: str, written: str) -> None:
    """Replaces `value` by `written` in all messages from now on, in whatever form they quote it."""
    one_line = " ".join(value.split())
    quoted = (json.dumps(value), json.dumps(value, ensure_ascii=False), repr(value), ascii(value))
    forms = {value, one_line, *value.splitlines(), *(text[1:-1] for text in quoted)}
    _hidden.update((form, written) for form in forms if len(form) >= SHORTEST)


def without_hidden(text: str) -> str:
    """Replaces hidden values in a text, also those whose end is truncated."""
    for value in sorted(_hidden, key=len, reverse=True):
        text = text.replace(value, _hidden[value])
        text = _without_cut(text, value) if len(value) > _SURE else text
    return text


def concealed(content: Any) -> Any:
    """Replaces hidden values in all texts of plain JSON types, or of a tuple of such."""
    if isinstance(content, str):
        return without_hidden(content)
    if isinstance(content, dict):
        return {concealed(name): concealed(value) for name, value in content.items()}
    return type(content)(map(concealed, content)) if isinstance(content, list | tuple) else content


def _without_cut(text: str, value: str) -> str:
    start = text.find(value[:_SURE])
    while start >= 0:
        end = start + _SURE
        while end < len(text) and end - start < len(value) and text[end] == value[end - start]:
            end += 1
        if _CUT.match(text, end):
            text = text[:start] + _hidden[value] + text[end:]
            end = start + len(_hidden[value])
        start = text.find(value[:_SURE], end)
    return text


LONGEST_LINE = 2000
"""Maximum length of a line that is not the user's own data."""

MAX_LINES = 50
"""Maximum number of lines of a message; the others are counted."""

# What acts on a terminal or reorders what it shows, but for newline and tab.
ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: object, longest: int = LONGEST_LINE) -> str:
    """Formats a text on one line of at most about `longest` characters.

    Characters that act on the terminal or are invisible are escaped; a longer text loses its middle.
    """
    text = without_hidden(str(text))
    if len(text) <= longest and len(whole := _escaped(text)) <= longest:
        return whole
    half = max(longest // 2, 1)
    head, tail = _escaped(text[:half])[:half], _escaped(text[-half:])[-half:]
    return f"{head} ... ({len(text):,} characters in all) ... {tail}"


def say(*lines: object, name: str = "mindbatch") -> None:
    """Prints messages on standard error, one a line, each after the program's name."""
    for line in lines[:MAX_LINES]:
        print(f"{name}: {printable(line)}", file=sys.stderr, flush=True)
    if len(lines) > MAX_LINES:
        print(f"{name}: ... and {len(lines) - MAX_LINES:,} more", file=sys.stderr, flush=True)


_printed: set[str] = set()


def say_once(*lines: str) -> None:
    """Prints the messages that this process has not printed yet."""
    new = [line for line in lines if line not in _printed]
    _printed.update(new)
    say(*new)


def show(*lines: str, file: TextIO | None = None) -> None:
    """Prints lines to a file, by default standard output; each stays one line."""
    for line in lines:
        print(printable(line), file=file or sys.stdout)
    (file or sys.stdout).flush()


def show_page(page: str, file: TextIO | None = None) -> None:
    """Prints a page as `show` does its lines. What data it shows went through `printable`, or it could add
    lines of its own."""
    show(*page.split("\n"), file=file)


def show_json(content: Any) -> None:
    """Prints plain JSON types on standard output, in ASCII."""
    print(without_hidden(json.dumps(content, indent=2)).replace("\x7f", "\\u007f"))


def data_output() -> TextIO:
    """Standard output for the user's own data, generated text above all: what leads to a file or a program
    gets every character as it is; on a terminal those that act on it are written as \\u001b and the like."""
    return cast(TextIO, TerminalText(sys.stdout)) if sys.stdout.isatty() else sys.stdout


class TerminalText(io.TextIOBase):
    """A terminal on which text of any length is shown as text; only newlines and tabs act."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str, /) -> int:
        self._file.write(ACTING.sub(lambda match: f"\\u{ord(match[0]):04x}", text))
        return len(text)

    def flush(self) -> None:
        self._file.flush()

    def isatty(self) -> bool:
        return True


def shown_traceback(lines: Sequence[str]) -> None:
    """Prints a traceback as `traceback.format_exception` gives it; its lines are indented after the first, so
    that none looks like a message."""
    for number, line in enumerate("".join(lines).splitlines()):
        print(f"{'  ' if number else ''}{printable(line)}", file=sys.stderr)


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


_OUTPUT, _ERROR = 1, 2


def watch_streams() -> None:
    """Opens closed ones on the null device, before a file of ours is opened under their number, and replaces
    standard output and error by streams that know what to do when they cannot be written."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            _open_null(number)
            stream = open(number, mode, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
    sys.stdout = _stream_over(sys.stdout, _StandardOutput(_OUTPUT, "w", closefd=False))
    sys.stderr = _stream_over(sys.stderr, _Messages(_ERROR, "w", closefd=False))


def hold_libraries_back() -> None:
    """Discards what libraries write to standard error past Python, such as the panics of those in Rust.

    sys.stderr still writes to standard error.
    """
    before, nowhere = sys.stderr, os.open(os.devnull, os.O_WRONLY)
    before.flush()
    sys.stderr = _stream_over(before, _Messages(os.dup(before.fileno()), "w"))
    os.dup2(nowhere, before.fileno())
    os.close(nowhere)


def run_tool(main: Callable[[], int | None], name: str) -> NoReturn:
    """Runs a program of its own and ends the process with its exit code, or that of an unfinished one if its
    output went nowhere.

    name: of the program, before the message about its output.
    """
    watch_streams()
    try:
        try:
            code = main()
        finally:
            sys.stdout.flush()
    except OutputError as error:
        say(*error.lines, name=name)
        code = error.exit_code
    except BrokenPipeError:
        code = EXIT_UNFINISHED
    end_output()
    sys.exit(code)


def end_output() -> None:
    """Writes what is left of both outputs; if that cannot be, which has been reported, it is dropped, so that
    the interpreter's last flush does not complain too."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, OutputError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_null(number: int) -> None:
    """Standard output cannot be written then, in a program that takes over the process either."""
    descriptor = os.open(os.devnull, os.O_RDONLY if number == _OUTPUT else os.O_RDWR)
    if descriptor != number:
        os.dup2(descriptor, number)
        os.close(descriptor)


def _stream_over(stream: TextIO, raw: io.FileIO) -> TextIO:
    """Returns a stream with the settings of the interpreter's own, over `raw`."""
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
