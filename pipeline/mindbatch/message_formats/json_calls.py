"""Reads calls with JSON arguments: complete objects between markers, or JSON after a name."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mindbatch.message_formats.call_text import (
    BLANK,
    CallError,
    CallText,
    ToolCall,
    arguments_call,
    call_of_object,
    json_value,
    named_call,
)

_ANY_NAME = re.compile(r"[^<\n]*")
_BEFORE_BRACKET = re.compile(r"[^\[{\n]*")


@dataclass(frozen=True)
class JsonCalls:
    """Reads an object, a list of objects, or several objects, between an opening and a closing marker.

    needs_closing: a call without the closing marker is truncated.
    call_of: converts an object to a call.
    """

    openings: tuple[str, ...]
    closing: str = ""
    needs_closing: bool = True
    call_of: Callable[[Any], ToolCall] = lambda value: call_of_object(value, "arguments")

    def __call__(self, text: CallText) -> Iterator[ToolCall]:
        if not text.accept(*self.openings):
            text.expect(self.openings[0])
        text.run(BLANK)
        calls = self._calls(text)
        if self.needs_closing:
            text.expect(self.closing)
        else:
            text.run(BLANK)
            text.accept(self.closing)
        yield from calls

    def _calls(self, text: CallText) -> list[ToolCall]:
        if text.upcoming("["):
            return [self.call_of(value) for value in _listed(text)]
        return self._objects(text)

    def _objects(self, text: CallText) -> list[ToolCall]:
        calls = [self.call_of(json_value(text.json()))]
        text.run(BLANK)
        while text.upcoming("{"):
            calls.append(self.call_of(json_value(text.json())))
            text.run(BLANK)
        return calls


def _listed(text: CallText) -> list[Any]:
    """Reads a list of values. Raises CallError if it is empty."""
    values: list[Any] = json_value(text.json("["))
    if not values:
        raise CallError("its list is empty")
    return values


def cohere_call(value: Any) -> ToolCall:
    return call_of_object(value, "parameters", name_key="tool_name")


def apertus_call(value: Any) -> ToolCall:
    """Makes a call of an object whose only key is the name."""
    if not isinstance(value, dict) or len(value) != 1:
        raise CallError("it is not a JSON object of one name")
    [(name, arguments)] = value.items()
    return named_call(name, arguments)


LIST_TAG = ("<tool_calls>", "</tool_calls>")
_IN_LIST = "<tool_call>"
_LIST_OF_OBJECTS = JsonCalls(LIST_TAG[:1], LIST_TAG[1])


def hunyuan_calls(text: CallText) -> Iterator[ToolCall]:
    """Reads a list of objects, or names with fenced JSON in tags of their own."""
    start = text.position
    text.expect(LIST_TAG[0])
    text.run(BLANK)
    if not text.upcoming(_IN_LIST):
        text.position = start
        yield from _LIST_OF_OBJECTS(text)
        return
    calls: list[ToolCall] = []
    while text.accept(_IN_LIST):
        name = text.run(_ANY_NAME)
        text.expect("```json")
        calls.append(arguments_call(text, name))
        text.expect("```")
        text.expect("</tool_call>")
        text.run(BLANK)
    text.expect(LIST_TAG[1])
    yield from calls


@dataclass(frozen=True)
class MessageCalls:
    """Reads calls up to the end of the message; JSON with text after it is an answer, not a call.

    tags: optional openings of a call. closing: its optional closing. ends: tokens that may follow.
    """

    tags: tuple[str, ...]
    closing: str
    ends: tuple[str, ...]

    def __call__(self, text: CallText) -> Iterator[ToolCall]:
        text.accept(*self.tags)
        while True:
            call = call_of_object(json_value(text.json()), "parameters", "arguments")
            text.run(BLANK)
            text.accept(self.closing)
            if not text.at_end and not text.upcoming(";", "{", *self.tags, *self.ends):
                raise CallError("text follows its JSON")
            yield call
            if not text.accept(";") and not text.upcoming("{"):
                return
            text.run(BLANK)
            if text.at_end or text.upcoming(*self.ends):
                return


_SEPARATOR = "<｜tool▁sep｜>"
_CALLS_BEGIN, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL_BEGIN, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_LIST_END = re.compile(rf"(\s*{_CALLS_END})*")
DEEPSEEK_MARKERS = (_CALLS_BEGIN, _CALL_BEGIN)


def deepseek_calls(text: CallText) -> Iterator[ToolCall]:
    """Reads V3.1's NAME, separator and JSON; or R1's and V3's type, separator, NAME and fenced JSON."""
    text.accept(_CALLS_BEGIN)
    text.expect(_CALL_BEGIN)
    name = text.run(_ANY_NAME)
    text.expect(_SEPARATOR)
    text.run(BLANK)
    fenced = not text.upcoming("{")
    if fenced:
        name = text.run(_ANY_NAME)
        text.expect("```json")
    call = arguments_call(text, name)
    if fenced:
        text.expect("```")
    text.expect(_CALL_END)
    text.run(_LIST_END)
    yield call


TOOL_CALLS = "[TOOL_CALLS]"


def mistral_calls(text: CallText) -> Iterator[ToolCall]:
    """Reads a JSON list (tokenizers before version 11), or a name, [ARGS] and JSON."""
    text.expect(TOOL_CALLS)
    text.run(BLANK)
    if text.upcoming("["):
        yield from [call_of_object(value, "arguments") for value in _listed(text)]
        return
    name = text.run(_BEFORE_BRACKET)
    if text.accept("[CALL_ID]"):
        text.run(_BEFORE_BRACKET)
    text.accept("[ARGS]")
    yield arguments_call(text, name)


_SECTION_BEGIN, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_KIMI_BEGIN, _KIMI_END = "<|tool_call_begin|>", "<|tool_call_end|>"
_SECTION_ENDS = re.compile(rf"(\s*{re.escape(_SECTION_END)})*")
_CALL_NUMBER = re.compile(r":\d+\s*\Z")
KIMI_MARKERS = (_SECTION_BEGIN, _KIMI_BEGIN)


def kimi_calls(text: CallText) -> Iterator[ToolCall]:
    """Reads the identifier functions.NAME:NUMBER of a call and JSON."""
    text.accept(_SECTION_BEGIN)
    text.expect(_KIMI_BEGIN)
    name = _CALL_NUMBER.sub("", text.run(_ANY_NAME)).strip().removeprefix("functions.")
    text.expect("<|tool_call_argument_begin|>")
    call = arguments_call(text, name)
    text.expect(_KIMI_END)
    text.run(_SECTION_ENDS)
    yield call
