"""Reads calls in Python's syntax, f(a="x", b=[1, None]), and in Gemma 4's."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mindbatch.message_formats.argument_types import json_call, type_of
from mindbatch.message_formats.call_text import (
    BLANK,
    CallError,
    CallText,
    ToolCall,
    call_of_object,
    json_value,
)
from mindbatch.message_formats.literals import GEMMA, PYTHON, read_literal, read_members

_NAME = re.compile(r"[\w.:/-]+")
_JSON_LIST = re.compile(r"\[\s*\{")


@dataclass(frozen=True)
class PythonCalls:
    """Reads a list of calls, calls on lines, or a list of JSON objects, which some models are prompted to
    write.

    tag: markers before and after the calls.
    ends: tokens that may follow calls without a tag, which are the whole message.
    is_optional: the tag may be missing.
    """

    tag: tuple[str, str] = ("", "")
    ends: tuple[str, ...] = ()
    is_optional: bool = False

    def __call__(self, text: CallText) -> Iterator[ToolCall]:
        is_tagged = bool(text.accept(self.tag[0])) or not self.is_optional
        text.run(BLANK)
        calls = self._json(text) if text.upcoming("[") and text.matches(_JSON_LIST) else self._calls(text)
        text.run(BLANK)
        if is_tagged:
            text.expect(self.tag[1])
        elif not text.at_end and not text.upcoming(*self.ends):
            raise CallError("text follows its calls")
        yield from calls

    def _json(self, text: CallText) -> list[ToolCall]:
        return [call_of_object(value, "arguments", "parameters") for value in json_value(text.json("["))]

    def _calls(self, text: CallText) -> list[ToolCall]:
        closing = "]" if text.accept("[") else ""
        calls = [_call(text)]
        text.run(BLANK)
        while text.accept(",") or (not closing and text.matches(_NAME)):
            calls.append(_call(text))
            text.run(BLANK)
        if closing:
            text.expect(closing)
        return calls


def _call(text: CallText) -> ToolCall:
    text.run(BLANK)
    name = text.run(_NAME)
    text.expect("(")
    values: list[tuple[str, str]] = []
    text.run(BLANK)
    while not text.accept(")"):
        key = text.run(_NAME)
        text.expect("=")
        values.append((key, type_of(text, name, key).json_like(read_literal(text, PYTHON))))
        text.run(BLANK)
        if not text.accept(","):
            text.expect(")")
            break
        text.run(BLANK)
    return json_call(name, values)


GEMMA_TAG = "<|tool_call>"


def gemma_calls(text: CallText) -> Iterator[ToolCall]:
    """Reads call:NAME{KEY:VALUE,...}."""
    text.expect(GEMMA_TAG)
    text.expect("call:")
    name = text.run(_NAME)
    text.expect("{")
    values = read_members(text, GEMMA)
    text.expect("<tool_call|>")
    yield json_call(name, [(key, type_of(text, name, key).json_like(value)) for key, value in values])
