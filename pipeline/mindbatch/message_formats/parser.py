"""Takes a generated message apart: reasoning and text as they stream, calls at the end of the message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from mindbatch.io.error_lines import shown
from mindbatch.message_formats.argument_types import ArgumentTypes
from mindbatch.message_formats.call_text import (
    BLANK,
    CallError,
    CallText,
    Content,
    Piece,
    Reasoning,
    ToolCall,
    Unparsed,
)

_SHOWN = 60


@dataclass(frozen=True)
class MessageFormat:
    """A way that chat models write their messages: reasoning between tags, then text with calls in it.

    calls: markers that begin a call; read_calls: reads from such a marker on, or raises CallError.
    end_tokens: dropped at the end of the message.
    whole_message_call: beginning of a call without a marker, where it begins the message.
    template_marks: regular expressions, all of which a chat template of the format has.
    wrappers: stand around an answer, and are left out.
    traces: markers that stand within calls only: elsewhere they are what is left of one.
    """

    name: str
    calls: tuple[str, ...]
    read_calls: Callable[[CallText], Iterator[ToolCall]]
    reasoning_opening: str = ""
    reasoning_closing: str = ""
    end_tokens: tuple[str, ...] = ()
    whole_message_call: str = ""
    template_marks: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = ()
    traces: tuple[str, ...] = ()

    @property
    def needs_special_tokens(self) -> bool:
        """True if markers are special tokens, which decoding must not skip; end tokens are text then too."""
        return bool(self.end_tokens)

    def with_special_tokens(self, tokens: Collection[str], ends: Sequence[str]) -> MessageFormat:
        """The format for a tokenizer, of whose special tokens markers may be.

        ends: those that end a message, which are text where markers are.
        """
        markers = (*self.calls, *self.traces, *self.wrappers, self.reasoning_opening, self.reasoning_closing)
        if not self.needs_special_tokens and not {*markers} & {*tokens}:
            return self
        return replace(
            self, end_tokens=(*self.end_tokens, *(end for end in ends if end not in self.end_tokens))
        )

    def parser(
        self, *, in_reasoning: bool, tools: Sequence[Any], has_one_call: bool = False
    ) -> MessageParser:
        """A parser of one message.

        in_reasoning: the prompt ends within reasoning. tools: those that the request offers; where there are
        none, no calls are looked for. has_one_call: calls after the first are left out.
        """
        types = ArgumentTypes(tools)
        format = self.for_functions(types.functions) if tools else self.without_tools()
        return MessageParser(format, in_reasoning, types, has_one_call)

    def for_functions(self, names: Collection[str]) -> MessageFormat:
        """The format where these functions may be called; another one where their names begin a call."""
        return self

    def begins_in_reasoning(self, prompt_end: str) -> bool:
        """True if a rendered prompt leaves reasoning open, so that the generated text goes on with it.

        prompt_end: its last characters; an opening tag before other text may be a user's.
        """
        return bool(self.reasoning_opening) and prompt_end.rstrip().endswith(self.reasoning_opening)

    def without_tools(self) -> MessageFormat:
        return replace(self, calls=(), whole_message_call="", traces=())

    def pieces(self, text: str, types: ArgumentTypes, *, is_whole: bool) -> list[Piece]:
        """The pieces of a message; where more text may come, those before its first call."""
        message, reader = _Message(), CallText(text, argument_type=types.of)
        content = reader.run(BLANK)
        if self.reasoning_closing and reader.accept(self.reasoning_opening):
            # Later, the opening tag is content: a message may tell of it.
            content = ""
            message.add_part(Reasoning(reader.until(self.reasoning_closing)))
            reader.accept(self.reasoning_closing)
            content = reader.run(BLANK)
        if not reader.upcoming(self.whole_message_call):
            content += self._content(reader, message if is_whole else None)
        while not reader.at_end:
            start = reader.position
            try:
                for part in self.parts(reader, is_whole):
                    message.add_content(content)
                    message.add_part(part)
                    content, start = "", reader.position
            except CallError as error:
                if not is_whole:
                    break
                broken = text[start : reader.position]
                message.add_note(broken, str(error))
                content += broken + self._content(reader)
                continue
            content += self._content(reader, message)
        message.finish(content, is_whole)
        return message.pieces

    def _content(self, text: CallText, message: _Message | None = None) -> str:
        """Reads up to a marker that begins a call, and leaves wrappers out.

        message: gets a note where the text has traces of a call; None: it goes on after a broken one.
        """
        content = text.until(*self.calls, *self.wrappers)
        while text.accept(*self.wrappers):
            content += text.until(*self.calls, *self.wrappers)
        if message is not None and self.traces:
            reader = CallText(content)
            reader.until(*self.traces)
            if not reader.at_end:
                message.add_note(content[reader.position :], f"no {self.calls[0]} before it")
        return content

    def parts(self, text: CallText, is_whole: bool) -> Iterator[ToolCall | Reasoning | Content]:
        """Reads from a marker on. Raises CallError where no call can be read, or none yet."""
        if not is_whole:
            raise CallError("calls are read at the end of the message")
        return self.read_calls(text)

    @cached_property
    def first_characters(self) -> set[str]:
        return {beginning[0] for beginning in self._marker_beginnings}

    @cached_property
    def _marker_beginnings(self) -> set[str]:
        tags = self.reasoning_opening, self.reasoning_closing, self.whole_message_call
        markers = (*self.calls, *self.end_tokens, *self.wrappers, *tags)
        return {marker[:end] for marker in markers for end in range(1, len(marker) + 1)}

    def certain_text(self, text: str) -> str:
        """The part of `text` that no text to come can change.

        A marker's beginning may be text, and whitespace before a marker is its template's.
        """
        longest = max(map(len, self._marker_beginnings), default=0)
        starts = range(max(0, len(text) - longest), len(text))
        end = next((start for start in starts if text[start:] in self._marker_beginnings), len(text))
        return text[:end].rstrip()


class MessageParser:
    """Takes one generated message apart; any cut of its text into pushes gives the same message.

    A push that may hold a marker reads the text from its beginning: nothing is remembered but how much was
    handed out. One that holds none goes on where the last one was.
    """

    def __init__(
        self, format: MessageFormat, in_reasoning: bool, types: ArgumentTypes, has_one_call: bool
    ) -> None:
        self._format, self._in_reasoning, self._types = format, in_reasoning, types
        self._has_one_call = has_one_call
        self._text = ""
        self._num_certain = 0
        self._within: type[Reasoning | Content] | None = None
        """What plain text belongs to; None where that is to be seen."""
        self._num_taken: Counter[type[Piece]] = Counter()
        """Characters of reasoning and of content that were handed out."""

    def push(self, text: str) -> list[Piece]:
        """The pieces that have become certain with this text."""
        self._text += text
        certain = self._format.certain_text(self._text)
        added, self._num_certain = certain[self._num_certain :], len(certain)
        if not added:
            return []
        is_plain = self._format.first_characters.isdisjoint(added)
        if is_plain and self._within is not None:
            self._num_taken[self._within] += len(added)
            return [self._within(added)]
        pieces = self._read(certain, is_whole=False)
        self._within = None
        if is_plain and len(pieces) == 1 and isinstance(piece := pieces[0], Reasoning | Content):
            self._within = type(piece) if piece.text == added else None
        return pieces

    def finish(self) -> list[Piece]:
        """The pieces that are left at the end of the generation; nothing is pushed after it."""
        end_token = next(filter(self._text.endswith, self._format.end_tokens), "")
        return self._read(self._text.removesuffix(end_token), is_whole=True)

    @property
    def is_within_reasoning(self) -> bool:
        """True if the text so far leaves its reasoning open, or the prompt did and the text does."""
        opening, closing = self._format.reasoning_opening, self._format.reasoning_closing
        is_opened = self._in_reasoning or self._text.lstrip().startswith(opening)
        return bool(closing) and is_opened and closing not in self._text

    def _read(self, text: str, *, is_whole: bool) -> list[Piece]:
        opening = self._format.reasoning_opening
        if self._in_reasoning and not text.lstrip().startswith(opening):
            text = opening + text
        return [*self._new(self._format.pieces(text, self._types, is_whole=is_whole))]

    def _new(self, pieces: list[Piece]) -> Iterator[Piece]:
        """The pieces without the text that was handed out before."""
        taken, num_calls = self._num_taken.copy(), 0
        for piece in pieces:
            if not isinstance(piece, Reasoning | Content):
                num_calls += isinstance(piece, ToolCall)
                if not (self._has_one_call and num_calls > 1 and isinstance(piece, ToolCall)):
                    yield piece
                continue
            kind = type(piece)
            if rest := piece.text[taken[kind] :]:
                self._num_taken[kind] += len(rest)
                yield kind(rest)
            taken[kind] -= len(piece.text) - len(rest)


class _Message:
    """Collects the pieces of a message, without the newlines that its template puts between them."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self._has_parts = False

    def add_content(self, text: str) -> None:
        if text.strip():
            is_first = not any(isinstance(piece, Content) for piece in self.pieces)
            self.pieces.append(Content(text.lstrip("\n") if is_first and self._has_parts else text))

    def add_part(self, part: ToolCall | Reasoning | Content) -> None:
        self._has_parts = True
        if isinstance(part, ToolCall):
            self._end_content("\n")
            self.pieces.append(part)
        elif isinstance(part, Content):
            self.add_content(part.text)
        elif part.text.strip():
            is_first = not any(isinstance(piece, Reasoning) for piece in self.pieces)
            self.pieces.append(Reasoning(part.text.strip("\n") if is_first else part.text.rstrip("\n")))

    def add_note(self, text: str, reason: str) -> None:
        self.pieces.append(Unparsed(f"{shown(text[: _SHOWN + 1], _SHOWN, repr)} stays text: {reason}"))

    def finish(self, content: str, is_whole: bool) -> None:
        """Adds the last text; of a message that goes on, whitespace at its end may be a separator."""
        self.add_content(content)
        if not is_whole:
            self._end_content(None)
        elif not self._has_parts and not content.strip():
            self.pieces.append(Content(content))

    def _end_content(self, characters: str | None) -> None:
        if self.pieces and isinstance(last := self.pieces[-1], Content):
            self.pieces[-1] = Content(last.text.rstrip(characters))
