"""Parses a generated message: reasoning and text as they stream, calls at the end of the message."""

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
    MessageSegment,
    Reasoning,
    ToolCall,
    Unparsed,
)

_EXCERPT = 60


@dataclass(frozen=True)
class MessageFormat:
    """A format of messages of chat models: reasoning between tags, then text with calls in it.

    calls: markers at the start of a call.
    read_calls: reads calls from a marker on, or raises CallError.
    end_tokens: tokens that are dropped at the end of the message.
    whole_message_call: the start of a message that is a call without a marker.
    template_marks: regular expressions, all of which match the chat templates of the format.
    wrappers: markers around an answer, which are dropped.
    traces: markers that occur within calls only; elsewhere they show a malformed call.
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
        """True if markers are special tokens, which decoding must not skip; end tokens are then text, too."""
        return bool(self.end_tokens)

    def with_special_tokens(self, tokens: Collection[str], ends: Sequence[str]) -> MessageFormat:
        """Returns the format for a tokenizer with these special tokens.

        ends: the tokens that end a message. They are text if some markers are special tokens.
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
        """Makes a parser for one message.

        in_reasoning: the prompt ends within reasoning.
        tools: the tools of the request; without any, calls are not parsed.
        has_one_call: calls after the first are dropped.
        """
        types = ArgumentTypes(tools)
        format = self.for_functions(types.functions) if tools else self.without_tools()
        return MessageParser(format, in_reasoning, types, has_one_call)

    def for_functions(self, names: Collection[str]) -> MessageFormat:
        """Returns the format for these functions, whose names start calls in some formats."""
        return self

    def starts_in_reasoning(self, prompt_end: str) -> bool:
        """True if a rendered prompt ends with an opening tag of reasoning.

        prompt_end: the last characters of the prompt. A tag before other text may be a user's.
        """
        return bool(self.reasoning_opening) and prompt_end.rstrip().endswith(self.reasoning_opening)

    def without_tools(self) -> MessageFormat:
        return replace(self, calls=(), whole_message_call="", traces=())

    def segments(self, text: str, types: ArgumentTypes, *, is_complete: bool) -> list[MessageSegment]:
        """Returns the segments of a message; if it is not complete, only those before its first call."""
        message, reader = _Message(), CallText(text, argument_type=types.of)
        content = reader.run(BLANK)
        if self.reasoning_closing and reader.accept(self.reasoning_opening):
            # Elsewhere the opening tag is content: a message may be about it.
            content = ""
            message.add_part(Reasoning(reader.until(self.reasoning_closing)))
            reader.accept(self.reasoning_closing)
            content = reader.run(BLANK)
        if not reader.upcoming(self.whole_message_call):
            content += self._content(reader, message if is_complete else None)
        while not reader.at_end:
            start = reader.position
            try:
                for part in self.parts(reader, is_complete):
                    message.add_content(content)
                    message.add_part(part)
                    content, start = "", reader.position
            except CallError as error:
                if not is_complete:
                    break
                broken = text[start : reader.position]
                message.add_note(broken, str(error))
                content += broken + self._content(reader)
                continue
            content += self._content(reader, message)
        message.finish(content, is_complete)
        return message.segments

    def _content(self, text: CallText, message: _Message | None = None) -> str:
        """Reads up to the marker of a call, without wrappers.

        message: gets a note if the text has traces of a call; None after a malformed call.
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

    def parts(self, text: CallText, is_complete: bool) -> Iterator[ToolCall | Reasoning | Content]:
        """Reads parts from a marker on. Raises CallError if there is no call or the message is incomplete."""
        if not is_complete:
            raise CallError("calls are read at the end of the message")
        return self.read_calls(text)

    @cached_property
    def first_characters(self) -> set[str]:
        return {prefix[0] for prefix in self._marker_prefixes}

    @cached_property
    def _marker_prefixes(self) -> set[str]:
        tags = self.reasoning_opening, self.reasoning_closing, self.whole_message_call
        markers = (*self.calls, *self.end_tokens, *self.wrappers, *tags)
        return {marker[:end] for marker in markers for end in range(1, len(marker) + 1)}

    def certain_text(self, text: str) -> str:
        """Returns the part of `text` whose meaning no further text can change.

        The end may be the start of a marker, or whitespace before a marker, which is dropped.
        """
        max_length = max(map(len, self._marker_prefixes), default=0)
        starts = range(max(0, len(text) - max_length), len(text))
        end = next((start for start in starts if text[start:] in self._marker_prefixes), len(text))
        return text[:end].rstrip()


class MessageParser:
    """Parses one generated message; the result does not depend on how its text is split into pushes.

    A push that may contain a marker parses the text from its start: the only state is how much was returned.
    A push without markers continues the last segment.
    """

    def __init__(
        self, format: MessageFormat, in_reasoning: bool, types: ArgumentTypes, has_one_call: bool
    ) -> None:
        self._format, self._in_reasoning, self._types = format, in_reasoning, types
        self._has_one_call = has_one_call
        self._text = ""
        self._num_certain = 0
        self._within: type[Reasoning | Content] | None = None
        """The kind of segment that plain text continues; None if the text must be parsed."""
        self._num_returned: Counter[type[MessageSegment]] = Counter()
        """Characters of reasoning and of content that were returned."""

    def push(self, text: str) -> list[MessageSegment]:
        """Adds text; returns the segments that no further text can change."""
        self._text += text
        certain = self._format.certain_text(self._text)
        added, self._num_certain = certain[self._num_certain :], len(certain)
        if not added:
            return []
        is_plain = self._format.first_characters.isdisjoint(added)
        if is_plain and self._within is not None:
            self._num_returned[self._within] += len(added)
            return [self._within(added)]
        segments = self._read(certain, is_complete=False)
        self._within = None
        if is_plain and len(segments) == 1 and isinstance(segment := segments[0], Reasoning | Content):
            self._within = type(segment) if segment.text == added else None
        return segments

    def finish(self) -> list[MessageSegment]:
        """Returns the remaining segments at the end of the generation."""
        end_token = next(filter(self._text.endswith, self._format.end_tokens), "")
        return self._read(self._text.removesuffix(end_token), is_complete=True)

    @property
    def is_within_reasoning(self) -> bool:
        """True if reasoning was opened by the prompt or the text, and is not closed yet."""
        opening, closing = self._format.reasoning_opening, self._format.reasoning_closing
        is_opened = self._in_reasoning or self._text.lstrip().startswith(opening)
        return bool(closing) and is_opened and closing not in self._text

    def _read(self, text: str, *, is_complete: bool) -> list[MessageSegment]:
        opening = self._format.reasoning_opening
        if self._in_reasoning and not text.lstrip().startswith(opening):
            text = opening + text
        return [*self._new(self._format.segments(text, self._types, is_complete=is_complete))]

    def _new(self, segments: list[MessageSegment]) -> Iterator[MessageSegment]:
        """Yields the segments without the text that was returned before."""
        returned, num_calls = self._num_returned.copy(), 0
        for segment in segments:
            if not isinstance(segment, Reasoning | Content):
                num_calls += isinstance(segment, ToolCall)
                if not (self._has_one_call and num_calls > 1 and isinstance(segment, ToolCall)):
                    yield segment
                continue
            kind = type(segment)
            if rest := segment.text[returned[kind] :]:
                self._num_returned[kind] += len(rest)
                yield kind(rest)
            returned[kind] -= len(segment.text) - len(rest)


class _Message:
    """Collects the segments of a message without the newlines that templates put between them."""

    def __init__(self) -> None:
        self.segments: list[MessageSegment] = []
        self._has_parts = False

    def add_content(self, text: str) -> None:
        if text.strip():
            is_first = not any(isinstance(segment, Content) for segment in self.segments)
            self.segments.append(Content(text.lstrip("\n") if is_first and self._has_parts else text))

    def add_part(self, part: ToolCall | Reasoning | Content) -> None:
        self._has_parts = True
        if isinstance(part, ToolCall):
            self._end_content("\n")
            self.segments.append(part)
        elif isinstance(part, Content):
            self.add_content(part.text)
        elif part.text.strip():
            is_first = not any(isinstance(segment, Reasoning) for segment in self.segments)
            self.segments.append(Reasoning(part.text.strip("\n") if is_first else part.text.rstrip("\n")))

    def add_note(self, text: str, reason: str) -> None:
        self.segments.append(Unparsed(f"{shown(text[: _EXCERPT + 1], _EXCERPT, repr)} stays text: {reason}"))

    def finish(self, content: str, is_complete: bool) -> None:
        """Adds the last text; whitespace at the end of an incomplete message may be a separator."""
        self.add_content(content)
        if not is_complete:
            self._end_content(None)
        elif not self._has_parts and not content.strip():
            self.segments.append(Content(content))

    def _end_content(self, characters: str | None) -> None:
        if self.segments and isinstance(last := self.segments[-1], Content):
            self.segments[-1] = Content(last.text.rstrip(characters))
