"""Tool calls in JSON: their text as it comes, character by character, and the calls that it holds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from mindbatch.io.strict_json import JsonFault, StrictReader, value_faults
from mindbatch.message_formats.pieces import ToolCall
from mindbatch.message_formats.reader import BLANK, CallFault, PushedText, Steps

_MAX_DEPTH = 100
_JSON = StrictReader(max_depth=_MAX_DEPTH)
_WITHIN_STRING = re.compile(r'[^"\\\x00-\x1f]*')
_BETWEEN_STRINGS = re.compile(r"[\s\w.,:+-]*", re.ASCII)


def json_text(reader: PushedText, opening: str = "{") -> Steps[str]:
    """Reads an object, or list, after whitespace; JSON's inner mistakes are left to who parses it.

    Raises CallFault at the first character that JSON cannot have there, which stays unread: a broken call
    swallows no text after it, and a closing tag within a string ends no call.
    """
    yield from reader.run(BLANK)
    if not (yield from reader.upcoming(opening)):
        raise CallFault("it ends before its JSON" if reader.at_end else "no JSON where its arguments must be")
    parts: list[str] = []
    depth, in_string = 0, False
    while depth or not parts:
        parts.append((yield from reader.run(_WITHIN_STRING if in_string else _BETWEEN_STRINGS)))
        character = reader.next_character
        if in_string and character == "\\":
            parts.append((yield from _escape(reader)))
            continue
        if character == '"':
            in_string = not in_string
        elif not in_string and character and character in "{}[]":
            depth += 1 if character in "{[" else -1
        else:
            raise CallFault(f"{character!r} within its JSON" if character else "it ends within its JSON")
        if depth > _MAX_DEPTH:
            raise CallFault("JSON nested too deeply")
        parts.append(reader.take(1))
    return "".join(parts)


def _escape(reader: PushedText) -> Steps[str]:
    """Reads a backslash and the character that it escapes, which may come with a later push."""
    backslash = reader.take(1)
    while not reader.next_character and not reader.ended:
        yield
    return backslash + reader.take(1)


def json_value(text: str) -> Any:
    """The value of a JSON text, read strictly. Raises CallFault."""
    try:
        value = _JSON.parse(text)
    except JsonFault as fault:
        raise CallFault(str(fault)) from fault
    if faults := value_faults(value, "its JSON", _MAX_DEPTH):
        raise CallFault(faults[0])
    return value


def named_call(name: object, arguments: object, text: str | None = None) -> ToolCall:
    """text: the arguments as generated, where they stand alone. Raises CallFault where a part is amiss."""
    if not isinstance(name, str) or not name.strip():
        raise CallFault("it has no name")
    if not isinstance(arguments, dict):
        raise CallFault("its arguments are no JSON object")
    return ToolCall(name.strip(), json.dumps(arguments, ensure_ascii=False) if text is None else text)


def call_of_object(value: object, *argument_keys: str) -> ToolCall:
    """The call of an object with a name and arguments, under one of some keys; others are ignored."""
    if not isinstance(value, dict):
        raise CallFault("it is no JSON object")
    keys = [key for key in argument_keys if key in value]
    if len(keys) != 1:
        raise CallFault(f"it has {' and '.join(keys) or f'no {argument_keys[0]}'}")
    return named_call(value.get("name"), value[keys[0]])


def arguments_call(reader: PushedText, name: str) -> Steps[ToolCall]:
    """Reads a call's arguments, where its name has been read before; they are given as generated."""
    text = yield from json_text(reader)
    return named_call(name, json_value(text), text)


def tagged_call(name: str, values: list[tuple[str, str]], words: Mapping[str, str]) -> ToolCall:
    """The call of keys and values between tags: JSON where the text of a value is JSON, else a text.

    words: texts that stand for JSON, though they are none. Raises CallFault.
    """
    keys = [key for key, _ in values]
    if len({*keys}) < len(keys):
        raise CallFault("an argument comes twice")
    members = (f"{json.dumps(key, ensure_ascii=False)}: {_as_json(text, words)}" for key, text in values)
    return named_call(name, {}, f"{{{', '.join(members)}}}")


def _as_json(text: str, words: Mapping[str, str]) -> str:
    stripped = text.strip()
    try:
        json_value(stripped)
    except CallFault:
        return words.get(stripped) or json.dumps(text, ensure_ascii=False)
    return stripped
