"""The parts of a generated message, and reading tool calls: their text from left to right, the JSON in it."""

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
    """A call that is complete and valid. arguments: text of a JSON object, as in OpenAI's API."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Unparsed:
    """A note that something like a tool call stayed text. Its text, as generated, comes as Content.

    reason: one line, with what was there and why it is no call.
    """

    reason: str


Piece = Reasoning | Content | ToolCall | Unparsed


@dataclass(frozen=True)
class ParsedMessage:
    """A message of an assistant. content, reasoning: None where there is none; notes: why text is no call."""

    content: str | None
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    notes: tuple[str, ...]

    @classmethod
    def of_pieces(cls, pieces: list[Piece]) -> ParsedMessage:
        return cls(
            content="".join(piece.text for piece in pieces if isinstance(piece, Content)) or None,
            reasoning="".join(piece.text for piece in pieces if isinstance(piece, Reasoning)) or None,
            tool_calls=tuple(piece for piece in pieces if isinstance(piece, ToolCall)),
            notes=tuple(piece.reason for piece in pieces if isinstance(piece, Unparsed)),
        )


BLANK = re.compile(r"\s*")
_MAX_DEPTH = 100
_JSON = StrictReader(max_depth=_MAX_DEPTH)
_JSON_END = json.JSONDecoder(parse_int=str, parse_float=str)
"""Finds where JSON ends; what it has read is thrown away."""


class CallError(ValueError):
    """Text that looked like a tool call is none; the message is the reason, in one line."""


class CallText:
    """A text and the position up to which it was read.

    At a CallError the position is that of the first character that no call can have there: a broken call
    swallows no call after it. argument_type: the `ArgumentType` of a function's argument, both by name; None
    where nothing says it.
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
        """The literal that comes next, which stays unread; empty where none does."""
        return next((literal for literal in literals if self._text.startswith(literal, self.position)), "")

    def looks(self, pattern: re.Pattern[str]) -> bool:
        """True if what comes next matches; it stays unread."""
        return pattern.match(self._text, self.position) is not None

    def accept(self, *literals: str) -> str:
        """Reads the literal that comes next, if any does."""
        literal = self.upcoming(*literals)
        self.position += len(literal)
        return literal

    def expect(self, literal: str) -> None:
        """Reads a literal after whitespace. Raises CallError where something else comes."""
        self.run(BLANK)
        if not self.accept(literal):
            raise CallError(f"it ends before {literal}" if self.at_end else f"no {literal} where it must be")

    def run(self, characters: re.Pattern[str]) -> str:
        """Reads as many characters as match. characters: a class of them, repeated."""
        match = self.match(characters)
        return match[0] if match else ""

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Reads what matches, if anything does."""
        match = pattern.match(self._text, self.position)
        self.position = match.end() if match else self.position
        return match

    def until(self, *markers: str) -> str:
        """Reads the text before the next marker, which stays unread; all text where none comes."""
        match = re.compile("|".join(map(re.escape, markers)) or "(?!)").search(self._text, self.position)
        start, self.position = self.position, len(self._text) if match is None else match.start()
        return self._text[start : self.position]

    def before(self, literal: str) -> str:
        """Reads up to a literal, and over it. Raises CallError where it never comes."""
        text = self.until(literal)
        if not self.accept(literal):
            raise CallError(f"it ends before {literal}")
        return text

    def json(self, opening: str = "{") -> str:
        """Reads an object, or list, after whitespace; `json_value` reads it strictly. Raises CallError."""
        self.run(BLANK)
        if not self.upcoming(opening):
            raise CallError(
                "it ends before its JSON" if self.at_end else "no JSON where its arguments must be"
            )
        start = self.position
        try:
            self.position = _JSON_END.raw_decode(self._text, start)[1]
        except json.JSONDecodeError as error:
            # Of a string without an end the position is its beginning, and no call begins within a string.
            self.position = len(self._text) if error.msg.startswith("Unterminated") else error.pos
            what = error.msg.removesuffix(" at").rstrip(": ")
            character = self._text[self.position : self.position + 1]
            place = f"{character!r} within its JSON ({what})" if character else "it ends within its JSON"
            raise CallError(place) from error
        except RecursionError as error:
            self.position += 1
            raise CallError("JSON nested too deeply") from error
        return self._text[start : self.position]


def json_text(value: Any) -> str:
    """The JSON of a value, in which letters stay what they are."""
    return json.dumps(value, ensure_ascii=False)


def json_value(text: str) -> Any:
    """The value of a JSON text, read strictly. Raises CallError."""
    try:
        value = _JSON.parse(text)
    except JsonError as error:
        raise CallError(str(error)) from error
    if errors := value_errors(value, "its JSON", _MAX_DEPTH):
        raise CallError(errors[0])
    return value


def named_call(name: object, arguments: object, text: str | None = None) -> ToolCall:
    """text: the arguments as generated, where they stand alone. Raises CallError where a part is amiss."""
    if not isinstance(name, str) or not name.strip():
        raise CallError("it has no name")
    if not isinstance(arguments, dict):
        raise CallError("its arguments are no JSON object")
    return ToolCall(name.strip(), json_text(arguments) if text is None else text)


def call_of_object(value: object, *argument_keys: str, name_key: str = "name") -> ToolCall:
    """The call of an object with a name and arguments, under one of some keys; others are ignored."""
    if not isinstance(value, dict):
        raise CallError("it is no JSON object")
    keys = [key for key in argument_keys if key in value]
    if len(keys) != 1:
        raise CallError(f"it has {' and '.join(keys) or f'no {argument_keys[0]}'}")
    return named_call(value.get(name_key), value[keys[0]])


def arguments_call(text: CallText, name: str) -> ToolCall:
    """Reads a call's arguments, where its name has been read before; they are given as generated."""
    arguments = text.json()
    return named_call(name, json_value(arguments), arguments)
