"""Reads a message of a tagged syntax: reasoning first, then content with tool calls in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mindbatch.message_formats.piece_writer import PieceWriter
from mindbatch.message_formats.pieces import Piece, ToolCall
from mindbatch.message_formats.reader import BLANK, CallFault, Markers, PushedText, Steps

HandOver = Callable[[ToolCall], None]
CallReading = Callable[[PushedText, HandOver], Steps[None]]
"""Reads what follows a call's opening marker and hands over calls that are complete. Raises CallFault."""

MessageReading = Callable[[PushedText, PieceWriter], Steps[None]]


@dataclass(frozen=True)
class TaggedSyntax:
    """Markers of a format.

    reasoning: its opening and closing tag; calls: how they are read, by their opening marker.
    call_ends: markers that are dropped right after a call; end_tokens: dropped at the end of the message.
    whole_message_call: a call without a marker, which begins the message with a brace.
    """

    calls: Mapping[str, CallReading]
    reasoning: tuple[str, str] | None = None
    call_ends: tuple[str, ...] = ()
    end_tokens: tuple[str, ...] = ()
    whole_message_call: CallReading | None = None

    def reading(self, *, in_reasoning: bool, with_tools: bool) -> MessageReading:
        def read(reader: PushedText, writer: PieceWriter) -> Steps[None]:
            if self.reasoning is not None:
                yield from self._read_reasoning(reader, writer, *self.reasoning, in_reasoning)
            if with_tools and self.whole_message_call is not None:
                writer.text((yield from reader.run(BLANK)))
                if (yield from reader.upcoming("{")):
                    yield from attempt_call(reader, writer, "", self.whole_message_call, self.end_tokens)
            yield from self._read_content(reader, writer, with_tools)

        return read

    def _read_reasoning(
        self, reader: PushedText, writer: PieceWriter, opening: str, closing: str, in_reasoning: bool
    ) -> Steps[None]:
        """Reads reasoning at the beginning; later, its opening tag is content: a message may tell of it."""
        blank = yield from reader.run(BLANK)
        opened = yield from reader.accept(opening)
        if not opened and not in_reasoning:
            writer.text(blank)
            return
        writer.begin_reasoning()
        writer.reasoning("" if opened else blank)
        markers = Markers(closing, *self.end_tokens)
        while marker := (yield from reader.until(markers, writer.reasoning)):
            reader.take(len(marker))
            if marker == closing:
                writer.end_reasoning()
                return
            writer.end_token(marker, writer.reasoning)

    def _read_content(self, reader: PushedText, writer: PieceWriter, with_tools: bool) -> Steps[None]:
        markers = Markers(*((*self.calls, *self.call_ends) if with_tools else ()), *self.end_tokens)
        while marker := (yield from reader.until(markers, writer.text)):
            if marker in self.calls:
                yield from attempt_call(reader, writer, marker, self.calls[marker], self.end_tokens)
                continue
            reader.take(len(marker))
            if marker in self.end_tokens:
                writer.end_token(marker, writer.text)
            elif not writer.after_call:
                writer.text(marker)


def attempt_call(
    reader: PushedText, writer: PieceWriter, marker: str, read: CallReading, end_tokens: tuple[str, ...]
) -> Steps[None]:
    """Reads calls from their opening marker on; where that fails, the text read for it is content."""

    def hand_over(call: ToolCall) -> None:
        writer.call(call)
        reader.start_record()

    reader.start_record()
    reader.take(len(marker))
    try:
        yield from read(reader, hand_over)
        reader.stop_record()
    except CallFault as fault:
        text = reader.stop_record()
        # A string without an end has the end token in it.
        token = next((token for token in end_tokens if text.endswith(token)), "")
        writer.unparsed(text.removesuffix(token), str(fault))
        if token:
            writer.end_token(token, writer.text)


class ReadingParser:
    """A message parser that resumes a reading function with each push."""

    def __init__(self, reading: MessageReading) -> None:
        self._reader, self._writer = PushedText(), PieceWriter()
        self._steps = reading(self._reader, self._writer)

    def push(self, text: str) -> list[Piece]:
        assert not self._reader.ended, "nothing is pushed after finish"
        self._reader.feed(text)
        next(self._steps, None)
        return self._writer.taken()

    def finish(self) -> list[Piece]:
        self._reader.ended = True
        next(self._steps, None)
        self._writer.finish()
        return self._writer.taken()
