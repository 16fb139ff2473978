"""Converts literals of Python and of Gemma 4 to JSON."""

import re
from dataclasses import dataclass

from mindbatch.message_formats.call_text import BLANK, CallError, CallText, json_text

_MAX_DEPTH = 100
_NUMBER = re.compile(r"-?\d[\d.eE+-]*", re.ASCII)
_WORD = re.compile(r"\w+")
_BARE_KEY = re.compile(r"[^:{}\[\],]*")
_ESCAPE = re.compile(r"\\(\n|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPED = {"\n": "", "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a"}
_ESCAPED |= {character: character for character in "\\'\""}
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}


@dataclass(frozen=True)
class Notation:
    """A notation of values.

    strings: regular expressions of strings with their text in group 1.
    escapes: strings have Python's backslash escapes.
    bare_keys: keys need no quotes.
    """

    strings: tuple[re.Pattern[str], ...]
    escapes: bool = False
    bare_keys: bool = False


def _python_string(quote: str) -> re.Pattern[str]:
    """Matches a string up to a quote at which it can end, since templates do not escape inner quotes."""
    return re.compile(rf"{quote}((?:[^\\{quote}]|\\.|{quote}(?!\s*(?:[,:)\]}}]|\Z)))*){quote}", re.DOTALL)


PYTHON = Notation((_python_string('"'), _python_string("'")), escapes=True)
GEMMA = Notation((re.compile(r'<\|"\|>(.*?)<\|"\|>', re.DOTALL),), bare_keys=True)


def read_literal(text: CallText, notation: Notation, depth: int = 0) -> str:
    """Reads a string, number, word, list, tuple or mapping after whitespace. Raises CallError."""
    if depth > _MAX_DEPTH:
        raise CallError("values nested too deeply")
    text.run(BLANK)
    if text.accept("["):
        return f"[{', '.join(_items(text, notation, ']', depth))}]"
    if text.accept("("):
        return f"[{', '.join(_items(text, notation, ')', depth))}]"
    if text.accept("{"):
        members = read_members(text, notation, depth + 1)
        return f"{{{', '.join(f'{json_text(key)}: {value}' for key, value in members)}}}"
    string = _string(text, notation)
    if string is not None:
        return json_text(string)
    return text.run(_NUMBER) or _word(text)


def _items(text: CallText, notation: Notation, closing: str, depth: int) -> list[str]:
    items: list[str] = []
    while not _accept(text, closing):
        items.append(read_literal(text, notation, depth + 1))
        if not _accept(text, ","):
            text.expect(closing)
            break
    return items


def read_members(text: CallText, notation: Notation, depth: int = 0) -> list[tuple[str, str]]:
    """Reads the keys and values of a mapping up to its end, after its opening brace. Raises CallError."""
    members: list[tuple[str, str]] = []
    while not _accept(text, "}"):
        key = _string(text, notation)
        if key is None and notation.bare_keys:
            key = text.run(_BARE_KEY).strip()
        if key is None:
            raise CallError("a key of a mapping is not a string")
        text.expect(":")
        members.append((key, read_literal(text, notation, depth)))
        if not _accept(text, ","):
            text.expect("}")
            break
    return members


def _accept(text: CallText, literal: str) -> str:
    text.run(BLANK)
    return text.accept(literal)


def _string(text: CallText, notation: Notation) -> str | None:
    """Reads the next string; returns None if the next value is not one."""
    for pattern in notation.strings:
        if match := text.match(pattern):
            return _unescaped(match[1]) if notation.escapes else match[1]
    return None


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        code = match[1]
        if code in _ESCAPED:
            return _ESCAPED[code]
        if code[0] in "xuU" and len(code) > 1:
            return _character(int(code[1:], 16), match[0])
        return _character(int(code, 8), match[0]) if code.isdecimal() else match[0]

    return _ESCAPE.sub(character, text)


def _character(number: int, escape: str) -> str:
    return chr(number) if number < 0x110000 else escape


def _word(text: CallText) -> str:
    word = text.run(_WORD)
    if word not in _WORDS:
        raise CallError(f"{word} is not a value" if word else "expected a value")
    return _WORDS[word]
