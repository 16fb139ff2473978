"""The one gate to the terminal: text that acts on nothing, one fault a line, of bounded length and number."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Sequence
from typing import Any, TextIO, cast

from mindbatch.io.hidden_values import without_hidden

LONGEST_LINE = 2000
"""Characters of a line that is not the user's own data."""

MOST_LINES = 50
"""Lines of one message; more of them are counted."""

# What acts on a terminal or reorders what it shows, but for newline and tab.
_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: object, longest: int = LONGEST_LINE) -> str:
    """`text` on one line of at most about `longest` characters; what would act on the terminal, or hide, is
    written as escapes, and of a longer text the middle is left out."""
    text = without_hidden(str(text))
    if len(text) <= longest and len(whole := _escaped(text)) <= longest:
        return whole
    half = max(longest // 2, 1)
    head, tail = _escaped(text[:half])[:half], _escaped(text[-half:])[-half:]
    return f"{head} ... ({len(text):,} characters in all) ... {tail}"


def say(*lines: object, name: str = "mindbatch") -> None:
    """Prints messages on standard error, one a line, each after the program's name."""
    for line in lines[:MOST_LINES]:
        print(f"{name}: {printable(line)}", file=sys.stderr, flush=True)
    if len(lines) > MOST_LINES:
        print(f"{name}: ... and {len(lines) - MOST_LINES:,} more", file=sys.stderr, flush=True)


def show(page: str, file: TextIO | None = None) -> None:
    """Prints a page, to standard output if no file is given. What data it shows went through `printable`, or
    it could add lines of its own."""
    for line in page.split("\n"):
        print(printable(line), file=file or sys.stdout)
    (file or sys.stdout).flush()


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
        """Prints it; returns the number of characters taken."""
        self._file.write(_ACTING.sub(lambda match: f"\\u{ord(match[0]):04x}", text))
        return len(text)

    def flush(self) -> None:
        """Shows what was written."""
        self._file.flush()

    def isatty(self) -> bool:
        """True: it is a terminal."""
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
