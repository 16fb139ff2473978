"""Strings of a schema as terminals: the text of JSON, in which every string has one form.

Quotes, backslashes and control characters are escaped as `json.dumps(ensure_ascii=False)` does, and nothing
else. So two strings are equal where their texts are, and a character is one unit of a text's pattern.
"""

from collections.abc import Iterable, Sequence

from mindbatch.decoding.json_schema.terminals import Leaf, all_of, either, regex
from mindbatch.decoding.python_regex import literal

_SHORT = {0x22: r"\x{22}", 0x5C: r"\x{5c}", 0x8: "b", 0x9: "t", 0xA: "n", 0xC: "f", 0xD: "r"}
ESCAPES = {code: f"u{code:04x}" for code in range(0x20)} | _SHORT
"""Characters that are escaped, and the regular expression of what follows the backslash."""
_QUOTE, _BACKSLASH = r"\x{22}", r"\x{5c}"
ANY_CHARACTER = (
    rf"(?:[^\x{{0}}-\x{{1f}}\x{{22}}\x{{5c}}]|{_BACKSLASH}"
    rf"(?:[\x{{22}}\x{{5c}}bfnrt]|u00(?:0[0-7bef]|1[0-9a-f])))"
)
NO_STRING = regex("a") + " & " + regex("b")
"""An operand that nothing matches."""


def character(code: int) -> str:
    """Returns the regular expression of a character in a text of JSON."""
    if code in ESCAPES:
        return _BACKSLASH + ESCAPES[code]
    return literal(chr(code))


def unquoted(text: str) -> str:
    """Returns the regular expression of a string in JSON, without its quotes."""
    return "".join(character(ord(c)) for c in text)


def quoted(pattern: str) -> str:
    """Returns an operand of a terminal: the matches of a regular expression, between quotes."""
    return regex(f"{_QUOTE}(?:{pattern}){_QUOTE}")


def one_of(names: Iterable[str]) -> str:
    """Returns an operand: exactly these strings."""
    return quoted(either(map(unquoted, names)))


def any_string(shortest: int = 0, longest: int | None = None) -> str:
    """Returns an operand: strings of so many characters (code points, as JSON Schema counts them)."""
    return quoted(f"{ANY_CHARACTER}{{{shortest},{'' if longest is None else longest}}}")


def string_leaf(
    shortest: int, longest: int | None, operands: Sequence[str], *, may_be_empty: bool
) -> Leaf | None:
    """Strings of so many characters that match every operand; None if none has that length.

    may_be_empty: one of the operands may itself match nothing.
    """
    if longest is not None and shortest > longest:
        return None
    has_bounds = shortest > 0 or longest is not None
    operands = [*operands, any_string(shortest, longest)] if has_bounds or not operands else operands
    return Leaf(all_of(operands), may_be_empty=may_be_empty or len(operands) > 1)
