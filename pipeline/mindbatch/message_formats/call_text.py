"""Defines the segments of a generated message, and reads the text of tool calls and the JSON in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mindbatch.io.strict_json import JsonError, StrictReader, value_errors


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete, valid call. arguments: the text of a JSON object, as in OpenAI's API."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Unparsed:
    """A note on text that looks like a tool call but is not; the text itself is Content.

    reason: one line with an excerpt of the text and its error.
    """

    reason: str


MessageSegment = Reasoning | Content | ToolCall | Unparsed


@dataclass(frozen=True)
class ParsedMessage:
    """A parsed message of an assistant; `notes` has the reasons of `Unparsed` segments."""

    content: str | None
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    notes: tuple[str, ...]

    @classmethod
    def from_segments(cls, segments: list[MessageSegment]) -> ParsedMessage:
        return cls(
            content="".join(segment.text for segment in segments if isinstance(segment, Content)) or None,
            reasoning="".join(segment.text for segment in segments if isinstance(segment, Reasoning)) or None,
            tool_calls=tuple(segment for segment in segments if isinstance(segment, ToolCall)),
            notes=tuple(segment.reason for segment in segments if isinstance(segment, Unparsed)),
        )


BLANK = re.compile(r"\s*")
_MAX_DEPTH = 100
_JSON = StrictReader(max_depth=_MAX_DEPTH)
_JSON_END = json.JSONDecoder(parse_int=str, parse_float=str)
"""Finds the end of JSON; its values are not used."""


class CallError(ValueError):
    """Raised when text is not a tool call; the message is the reason in one line."""


class CallText:
    """A text with the position up to which it is read.

    After a CallError the position is that of the first invalid character, so that the next call is still
    found.

    argument_type: returns the `ArgumentType` of (function name, argument name); None if there are no schemas.
    """

    def __init__(
        self, text: str, position: int = 0, argument_type: Callable[[str, str], Any] | None = None
    ) -> None:
        self._text = text
        self.position = position
        self.argument_type = argument_type

    @property
    def at_end(self) -> bool:
        return self.position == len(self._text)

    def upcoming(self, *literals: str) -> str:
        """Returns the literal that comes next without reading it; empty if none of them does."""
        return next((literal for literal in literals if self._text.startswith(literal, self.position)), "")

    def matches(self, pattern: re.Pattern[str]) -> bool:
        """True if the next text matches, which is not read."""
        return pattern.match(self._text, self.position) is not None

    def accept(self, *literals: str) -> str:
        """Reads the literal that comes next, if one of them does."""
        literal = self.upcoming(*literals)
        self.position += len(literal)
        return literal

    def expect(self, literal: str) -> None:
        """Reads a literal after whitespace. Raises CallError if it does not come next."""
        self.run(BLANK)
        if not self.accept(literal):
            raise CallError(f"it ends before {literal}" if self.at_end else f"expected {literal}")

    def run(self, characters: re.Pattern[str]) -> str:
        """Reads the characters that match. characters: a repeated class."""
        match = self.match(characters)
        return match[0] if match else ""

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Reads the text that matches, if any."""
        match = pattern.match(self._text, self.position)
        self.position = match.end() if match else self.position
        return match

    def until(self, *markers: str) -> str:
        """Reads the text before the next marker, or all text if none follows."""
        match = re.compile("|".join(map(re.escape, markers)) or "(?!)").search(self._text, self.position)
        start, self.position = self.position, len(self._text) if match is None else match.start()
        return self._text[start : self.position]

    def before(self, literal: str) -> str:
        """Reads the text before a literal, and the literal. Raises CallError if it does not follow."""
        text = self.until(literal)
        if not self.accept(literal):
            raise CallError(f"it ends before {literal}")
        return text

    def json(self, opening: str = "{") -> str:
        """Reads the text of an object or list after whitespace, for `json_value`. Raises CallError."""
        self.run(BLANK)
        if not self.upcoming(opening):
            raise CallError("it ends before its JSON" if self.at_end else "expected JSON")
        start = self.position
        try:
            self.position = _JSON_END.raw_decode(self._text, start)[1]
        except json.JSONDecodeError as error:
            # The error of an unterminated string is at its start, but no call starts within a string.
            self.position = len(self._text) if error.msg.startswith("Unterminated") else error.pos
            reason = error.msg.removesuffix(" at").rstrip(": ")
            character = self._text[self.position : self.position + 1]
            message = f"{character!r} within its JSON ({reason})" if character else "it ends within its JSON"
            raise CallError(message) from error
        except RecursionError as error:
            self.position += 1
            raise CallError("JSON nested too deeply") from error
        return self._text[start : self.position]


def json_text(value: Any) -> str:
    """Writes a value as JSON without escaping letters."""
    return json.dumps(value, ensure_ascii=False)


def json_value(text: str) -> Any:
    """Parses strict JSON. Raises CallError."""
    try:
        value = _JSON.parse(text)
    except JsonError as error:
        raise CallError(str(error)) from error
    if errors := value_errors(value, "its JSON", _MAX_DEPTH):
        raise CallError(errors[0])
    return value


def named_call(name: object, arguments: object, text: str | None = None) -> ToolCall:
    """Makes a call. text: the arguments as generated. Raises CallError if name or arguments are invalid."""
    if not isinstance(name, str) or not name.strip():
        raise CallError("it has no name")
    if not isinstance(arguments, dict):
        raise CallError("its arguments are not a JSON object")
    return ToolCall(name.strip(), json_text(arguments) if text is None else text)


def call_of_object(value: object, *argument_keys: str, name_key: str = "name") -> ToolCall:
    """Makes a call of an object with a name, and arguments under one of the keys; ignores other keys."""
    if not isinstance(value, dict):
        raise CallError("it is not a JSON object")
    keys = [key for key in argument_keys if key in value]
    if len(keys) != 1:
        raise CallError(f"it has {' and '.join(keys) or f'no {argument_keys[0]}'}")
    return named_call(value.get(name_key), value[keys[0]])


def arguments_call(text: CallText, name: str) -> ToolCall:
    """Reads the arguments of a call whose name was read before; they stay as generated."""
    arguments = text.json()
    return named_call(name, json_value(arguments), arguments)
