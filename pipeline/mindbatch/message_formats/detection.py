"""Finds the format of a chat template by rendering a call and parsing the result."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mindbatch.message_formats.argument_types import ArgumentTypes
from mindbatch.message_formats.call_text import CallError, CallText
from mindbatch.message_formats.formats import BY_MARKS
from mindbatch.message_formats.parser import MessageFormat

RenderWithTools = Callable[[list[dict[str, Any]], list[dict[str, Any]]], str | None]
"""Renders messages with tools; returns None if the template refuses them."""

_NAME, _ARGUMENTS = "find_tides", {"port": "90210", "days": 2}
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _NAME,
            "description": "Finds the tides.",
            "parameters": {
                "type": "object",
                "properties": {
                    "port": {"type": "string", "description": "A port."},
                    "days": {"type": "integer", "description": "Days from now."},
                },
                "required": ["port", "days"],
            },
        },
    }
]
_QUESTION, _REPLY = "When is high tide?", "It is at noon."
_MAX_CHARACTERS, _HEADER_END = 100_000, 16
_USER_TURN: list[dict[str, Any]] = [{"role": "user", "content": _QUESTION}]


def detect(source: str, render: RenderWithTools = lambda messages, tools: None) -> MessageFormat | None:
    """Returns the format in which a chat template writes calls, or None if it is not known.

    The rendered call decides; if the template writes no calls, marks in its source do, where it may explain
    calls to the model.
    """
    reply = _after_question(render([*_USER_TURN, {"role": "assistant", "content": _REPLY}], _TOOLS))
    header = None if reply is None else reply.partition(_REPLY)[0]
    for text in _rendered_calls(render):
        if readers := [format for format in BY_MARKS if _reads(format, text, header)]:
            return _with_reasoning_of(readers, source)
    for format in BY_MARKS:
        if all(re.search(mark, source) for mark in format.template_marks):
            return format
    return None


def _rendered_calls(render: RenderWithTools) -> Iterator[str]:
    """Renders a call in all forms that a template may accept: with arguments as an object or text, an empty
    content or null, with or without the tool's result."""
    for answered in (False, True):
        for content in ("", None):
            for arguments in (_ARGUMENTS, json.dumps(_ARGUMENTS)):
                text = _after_question(render(_conversation(content, arguments, answered), _TOOLS))
                if text is not None:
                    yield text


def _after_question(text: str | None) -> str | None:
    if text is None or len(text) > _MAX_CHARACTERS or _QUESTION not in text:
        return None
    return text.rpartition(_QUESTION)[2]


def _conversation(content: str | None, arguments: Any, answered: bool) -> list[dict[str, Any]]:
    call = {"id": "call00001", "type": "function", "function": {"name": _NAME, "arguments": arguments}}
    call_turn = {"role": "assistant", "content": content, "tool_calls": [call]}
    answer = {"role": "tool", "name": _NAME, "tool_call_id": "call00001", "content": _REPLY}
    return [*_USER_TURN, call_turn, answer] if answered else [*_USER_TURN, call_turn]


def _reads(format: MessageFormat, text: str, header: str | None) -> bool:
    """True if the format finds the call in a text. header: the text before a message, or None if unknown."""
    types = ArgumentTypes(_TOOLS)
    format = format.for_functions(types.functions)
    markers = [marker for marker in (*format.calls, format.whole_message_call) if marker]
    for match in re.finditer("|".join(map(re.escape, markers)), text):
        is_whole_message = match[0] == format.whole_message_call
        if is_whole_message and header is not None and _end(text[: match.start()]) != _end(header):
            continue
        reader = CallText(text, match.start(), types.of)
        try:
            calls = [*format.read_calls(reader)]
        except CallError:
            continue
        if [(call.name, json.loads(call.arguments)) for call in calls] == [(_NAME, _ARGUMENTS)]:
            return True
    return False


def _end(text: str) -> str:
    """Returns the last characters without whitespace, which include the name of the role."""
    return "".join(text[-10 * _HEADER_END :].split())[-_HEADER_END:]


def _with_reasoning_of(readers: Sequence[MessageFormat], source: str) -> MessageFormat:
    """Returns the first format, or one with the same calls whose tags of reasoning are in the template."""
    same = [format for format in readers if format.read_calls is readers[0].read_calls]
    thinking = [format for format in same if format.reasoning_opening in source]
    return max(thinking, key=lambda format: len(format.reasoning_opening), default=same[0])
