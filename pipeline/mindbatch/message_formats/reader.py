"""Reads pushed text up to markers, however it is cut: a marker's possible beginning is held back.

Reading functions are generators that yield where they need more text; a parser resumes them with each push.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TypeVar

_Result = TypeVar("_Result")
Steps = Generator[None, None, _Result]
"""A reading that pauses for more text and returns its result."""

BLANK = re.compile(r"\s*")


class CallFault(ValueError):
    """Text that looked like a tool call is none; the message is the reason, in one line."""


class Markers:
    """Texts to stop at; none is the beginning of another, nor overlaps another."""

    def __init__(self, *texts: str) -> None:
        self._texts = texts
        self._longest = max(map(len, texts), default=0)
        self._pattern = re.compile("|".join(map(re.escape, texts)) or "(?!)")

    def search(self, text: str, start: int) -> re.Match[str] | None:
        return self._pattern.search(text, start)

    def certain_end(self, text: str, start: int) -> int:
        """End of the part of `text` that no text to come can make the beginning of a marker."""
        for begin in range(max(start, len(text) - self._longest + 1), len(text)):
            tail = text[begin:]
            if any(marker.startswith(tail) for marker in self._texts):
                return begin
        return len(text)


class PushedText:
    """Text that was pushed and is not yet read; that which is read may be recorded.

    No reading function leaves more unread, when it pauses, than the longest marker: time is linear.
    """

    def __init__(self) -> None:
        self._text = ""
        self._position = 0
        self._record: list[str] | None = None
        self.ended = False

    def feed(self, text: str) -> None:
        self._text = self._text[self._position :] + text
        self._position = 0

    def start_record(self) -> None:
        self._record = []

    def stop_record(self) -> str:
        """The text read since the record was started."""
        text = "".join(self._record or ())
        self._record = None
        return text

    @property
    def next_character(self) -> str:
        """Empty where no unread text is there."""
        return self._text[self._position : self._position + 1]

    def take(self, length: int) -> str:
        text = self._text[self._position : self._position + length]
        self._position += len(text)
        if self._record is not None:
            self._record.append(text)
        return text

    def until(self, markers: Markers, write: Callable[[str], object]) -> Steps[str | None]:
        """Writes the text before the next marker, as it comes, and returns the marker, which stays unread.

        None: the text has ended without one.
        """
        while True:
            if match := markers.search(self._text, self._position):
                write(self.take(match.start() - self._position))
                return match[0]
            end = len(self._text) if self.ended else markers.certain_end(self._text, self._position)
            write(self.take(end - self._position))
            if self.ended:
                return None
            yield

    def upcoming(self, *literals: str) -> Steps[str]:
        """The literal that comes next, which stays unread; empty where none does.

        None of them is the beginning of another.
        """
        longest = max(map(len, literals))
        while True:
            rest = self._text[self._position : self._position + longest]
            for literal in literals:
                if rest.startswith(literal):
                    return literal
            if self.ended or not any(literal.startswith(rest) for literal in literals):
                return ""
            yield

    def accept(self, *literals: str) -> Steps[str]:
        """Reads the literal that comes next, if any does."""
        literal = yield from self.upcoming(*literals)
        return self.take(len(literal))

    def expect(self, literal: str) -> Steps[None]:
        """Reads a literal after whitespace. Raises CallFault where something else comes."""
        yield from self.run(BLANK)
        if not (yield from self.accept(literal)):
            raise CallFault(f"it ends before {literal}" if self.at_end else f"no {literal} where it must be")

    def text_before(self, literal: str) -> Steps[str]:
        """Reads up to a literal, and over it. Raises CallFault where it never comes."""
        parts: list[str] = []
        if not (yield from self.until(Markers(literal), parts.append)):
            raise CallFault(f"it ends before {literal}")
        self.take(len(literal))
        return "".join(parts)

    def run(self, characters: re.Pattern[str]) -> Steps[str]:
        """Reads as many characters as match. characters: a class of them, repeated."""
        parts: list[str] = []
        while True:
            match = characters.match(self._text, self._position)
            parts.append(self.take(match.end() - self._position if match else 0))
            if self.ended or self.next_character:
                return "".join(parts)
            yield

    @property
    def at_end(self) -> bool:
        return self.ended and not self.next_character
