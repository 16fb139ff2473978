"""Collects the pieces of a message, without the whitespace that its template puts between them."""

from __future__ import annotations

from collections.abc import Callable

from mindbatch.io.fault_lines import shown
from mindbatch.message_formats.pieces import Content, Piece, Reasoning, ToolCall, Unparsed

_SHOWN = 60


class _Lane:
    """Text of one kind. Whitespace at its end is held back, for it may turn out to be a separator.

    follows_separator: newlines at its beginning are no part of it.
    """

    def __init__(self, *, follows_separator: bool) -> None:
        self.begun = False
        self.follows_separator = follows_separator
        self._blank: list[str] = []

    def add(self, text: str) -> str:
        """The text that has become certain."""
        body = text.rstrip()
        if not body:
            self._blank.append(text)
            return ""
        certain = "".join(self._blank) + body
        if self.follows_separator and not self.begun:
            certain = certain.lstrip("\n")
        self._blank = [text[len(body) :]]
        self.begun = True
        return certain

    def close(self) -> str:
        """Ends the text at a separator; newlines before it are part of the separator."""
        blank = "".join(self._blank).rstrip("\n") if self.begun else ""
        self._blank.clear()
        return blank

    def rest(self) -> str:
        """The text that is left at the end of the message."""
        return "" if self.follows_separator and not self.begun else "".join(self._blank)


class PieceWriter:
    """Makes pieces of what a format's reading function finds, in order."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._reasoning = _Lane(follows_separator=True)
        self._content = _Lane(follows_separator=False)
        self._end_token: tuple[str, Callable[[str], None]] | None = None
        self.after_call = False
        """True where nothing but whitespace has come since a call."""

    def taken(self) -> list[Piece]:
        """The pieces since the last time."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def reasoning(self, text: str) -> None:
        if text:
            self._write_end_token()
            self._put(Reasoning, self._reasoning.add(text))

    def begin_reasoning(self) -> None:
        """A line of its own for more reasoning; whitespace before the first is no content."""
        if self._reasoning.begun:
            self._reasoning.add("\n")
        elif not self._content.begun:
            self._content.close()
        self._content.follows_separator = True

    def end_reasoning(self) -> None:
        self._write_end_token()
        self._put(Reasoning, self._reasoning.close())

    def text(self, text: str) -> None:
        if text:
            self._write_end_token()
            self._put(Content, self._content.add(text))

    def begin_content(self) -> None:
        """A line of its own for more content."""
        if self._content.begun:
            self._content.add("\n")

    def call(self, call: ToolCall) -> None:
        self._write_end_token()
        rest = self._content.close()
        if not self.after_call:
            self._put(Content, rest)
        self._pieces.append(call)
        self._content.follows_separator = self.after_call = True

    def unparsed(self, text: str, reason: str) -> None:
        self.text(text)
        self._pieces.append(Unparsed(f"{shown(text[: _SHOWN + 1], _SHOWN, repr)} stays text: {reason}"))

    def end_token(self, token: str, write: Callable[[str], None]) -> None:
        """A token that ends the message if it is the last; followed by more, it is text for `write`."""
        self._write_end_token()
        self._end_token = token, write

    def finish(self) -> None:
        self._end_token = None
        self.end_reasoning()
        if not self.after_call:
            self._put(Content, self._content.rest())

    def _put(self, kind: type[Reasoning] | type[Content], text: str) -> None:
        if text:
            self._pieces.append(kind(text))
            self.after_call = False

    def _write_end_token(self) -> None:
        if self._end_token is not None:
            (token, write), self._end_token = self._end_token, None
            write(token)
