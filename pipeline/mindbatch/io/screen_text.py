"""The one gate to the terminal: text that acts on nothing, one fault a line, of bounded length and number."""

import io
import json
import re
import sys
from collections.abc import Sequence
from typing import Any, TextIO, cast

SHORTEST = 4
"""Characters; shorter values occur in words of messages."""

_SURE = 8  # characters of a value that are taken for it where a message was cut
_CUT = re.compile(r"\.\.\.| \.\.\. \(|\Z")
_hidden: dict[str, str] = {}


def hide(value: str, written: str) -> None:
    """From now on `written` is shown in place of `value`, in whatever form a message quotes it."""
    one_line = " ".join(value.split())
    quoted = (json.dumps(value), json.dumps(value, ensure_ascii=False), repr(value), ascii(value))
    forms = {value, one_line, *value.splitlines(), *(text[1:-1] for text in quoted)}
    _hidden.update((form, written) for form in forms if len(form) >= SHORTEST)


def without_hidden(text: str) -> str:
    """`text` with what was written in place of each hidden value, also where its end was cut off."""
    for value in sorted(_hidden, key=len, reverse=True):
        text = text.replace(value, _hidden[value])
        text = _without_cut(text, value) if len(value) > _SURE else text
    return text


def concealed(content: Any) -> Any:
    """Plain JSON types, or a tuple of such, with `without_hidden` for each text."""
    if isinstance(content, str):
        return without_hidden(content)
    if isinstance(content, dict):
        return {concealed(name): concealed(value) for name, value in content.items()}
    return type(content)(map(concealed, content)) if isinstance(content, list | tuple) else content


def _without_cut(text: str, value: str) -> str:
    place = text.find(value[:_SURE])
    while place >= 0:
        end = place + _SURE
        while end < len(text) and end - place < len(value) and text[end] == value[end - place]:
            end += 1
        if _CUT.match(text, end):
            text = text[:place] + _hidden[value] + text[end:]
            end = place + len(_hidden[value])
        place = text.find(value[:_SURE], end)
    return text


LONGEST_LINE = 2000
"""Characters of a line that is not the user's own data."""

MOST_LINES = 50
"""Lines of one message; more of them are counted."""

# What acts on a terminal or reorders what it shows, but for newline and tab.
ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


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
