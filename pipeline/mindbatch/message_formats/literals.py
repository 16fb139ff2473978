"""Reads values as Python writes them, and as Gemma 4 does, and gives them as JSON."""

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
    """Strings of a notation of values: regular expressions of them, the text in group 1.

    escapes: backslashes in them mean what they do in Python. bare_keys: keys need no quotes.
    """

    strings: tuple[re.Pattern[str], ...]
    escapes: bool = False
    bare_keys: bool = False


def _python_string(quote: str) -> re.Pattern[str]:
    """A string ends at a quote where one can end: templates write quotes within a text as they are."""
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
            raise CallError("a key of a mapping is no string")
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
    """The text of the string that comes next; None where none does."""
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
            return _of_code(int(code[1:], 16), match[0])
        return _of_code(int(code, 8), match[0]) if code.isdecimal() else match[0]

    return _ESCAPE.sub(character, text)


def _of_code(number: int, escape: str) -> str:
    return chr(number) if number < 0x110000 else escape


def _word(text: CallText) -> str:
    word = text.run(_WORD)
    if word not in _WORDS:
        raise CallError(f"{word} is no value" if word else "no value where one must be")
    return _WORDS[word]
