"""Owns translating a regular expression of Python's `re` to the syntax that the grammar library reads.

What matches the result matches the pattern under `re.fullmatch`. Python's own parser reads it, so that what
the two syntaxes write alike and mean differently (sets in sets, \\w, $, flags) means what Python means.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from mindbatch.io.regex_tree import BEGINNINGS, ENDS, MOST_NESTING, TOO_DEEP, constants, regex_tree

MOST_CHARACTERS = 1 << 16
"""Most characters of a regular expression."""
# The library knows a later Unicode than Python, to which the characters that are new there mean nothing.
_KNOWN = rf"\p{{age={'.'.join(unicodedata.unidata_version.split('.')[:2])}}}"
_CATEGORIES = {
    # Python's \w is what str.isalnum accepts: letters and every kind of number. Its \s has the separators
    # U+001C to U+001F besides Unicode's white space.
    constants.CATEGORY_DIGIT: (rf"[\d&&{_KNOWN}]", "[0-9]"),
    constants.CATEGORY_SPACE: (r"[\s\x{1c}-\x{1f}]", r"[\x{20}\x{9}-\x{d}]"),
    constants.CATEGORY_WORD: (rf"[[\p{{L}}\p{{N}}_]&&{_KNOWN}]", "[0-9A-Za-z_]"),
}
_OPPOSITES = {
    constants.CATEGORY_NOT_DIGIT: constants.CATEGORY_DIGIT,
    constants.CATEGORY_NOT_SPACE: constants.CATEGORY_SPACE,
    constants.CATEGORY_NOT_WORD: constants.CATEGORY_WORD,
}
_UNSUPPORTED = {
    "ASSERT": "a look-around",
    "ASSERT_NOT": "a look-around",
    "FAILURE": "a look-around",
    "GROUPREF": "a back-reference",
    "GROUPREF_EXISTS": "a conditional group",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive repeat",
}
_SURROGATES = range(0xD800, 0xE000)


def translated(pattern: str) -> str:
    """The pattern in the syntax of Rust's regex crate.

    Raises:
        ValueError: the reason, as words that follow "decoding.regex=...: ".
    """
    tree = regex_tree(pattern, MOST_CHARACTERS)
    flags = tree.state.flags
    try:
        text = _with_case(_sequence(tree, flags, True, True), 0, flags)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    # Every parenthesis of the text is a group: literal ones are written by number.
    depths = accumulate((character == "(") - (character == ")") for character in text)
    if max(depths, default=0) > MOST_NESTING:
        raise ValueError(TOO_DEEP)
    return text


def _sequence(items: Iterable[Any], flags: int, at_start: bool, at_end: bool) -> str:
    """`at_start` and `at_end`: nothing precedes the sequence or follows it, so an anchor holds there."""
    nodes = list(items)
    first, last = 0, len(nodes)
    while at_start and first < last and nodes[first] in _anchors(BEGINNINGS):
        first += 1
    while at_end and first < last and nodes[last - 1] in _anchors(ENDS):
        last -= 1
    return "".join(
        _node(op, value, flags, at_start and place == first, at_end and place == last - 1)
        for place, (op, value) in enumerate(nodes[first:last], first)
    )


def _anchors(kinds: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [(constants.AT, kind) for kind in kinds]


def _node(op: Any, value: Any, flags: int, at_start: bool, at_end: bool) -> str:
    if op is constants.LITERAL:
        return _character(value)
    if op is constants.NOT_LITERAL:
        return f"[^{_character(value)}]"
    if op is constants.ANY:
        return "(?s:.)" if flags & re.DOTALL else r"[^\x{a}]"
    if op is constants.IN:
        return _set(value, flags)
    if op is constants.BRANCH:
        return f"(?:{'|'.join(_sequence(branch, flags, at_start, at_end) for branch in value[1])})"
    if op is constants.SUBPATTERN:
        _, added, removed, items = value
        inner = (flags | added) & ~removed
        return f"(?:{_with_case(_sequence(items, inner, at_start, at_end), flags, inner)})"
    if op in (constants.MAX_REPEAT, constants.MIN_REPEAT):
        return _repeat(value, flags, at_start, at_end)
    if op is constants.AT:
        raise ValueError(
            "has an anchor inside (^, $, \\b...); the whole output is matched, so none is needed"
        )
    construct = _UNSUPPORTED.get(str(op), str(op))
    raise ValueError(f"has {construct}, which constrained output does not support")


def _repeat(value: Any, flags: int, at_start: bool, at_end: bool) -> str:
    low, high, items = value
    once = high == 1  # only then is what stands inside at both edges, if it is there at all
    inner = _sequence(items, flags, at_start and once, at_end and once)
    return f"(?:{inner}){{{low},{'' if high is constants.MAXREPEAT else high}}}"


def _set(items: Sequence[Any], flags: int) -> str:
    negated = items[0][0] is constants.NEGATE
    members = "".join(_member(op, value, flags) for op, value in items[negated:])
    return f"[{'^' if negated else ''}{members}]"


def _member(op: Any, value: Any, flags: int) -> str:
    if op is constants.LITERAL:
        return _character(value)
    if op is constants.RANGE:
        return f"{_character(value[0])}-{_character(value[1])}"
    ascii_only = bool(flags & re.ASCII)
    if value in _OPPOSITES:
        return f"[^{_CATEGORIES[_OPPOSITES[value]][ascii_only]}]"
    return _CATEGORIES[value][ascii_only]


def _character(code: int) -> str:
    if code in _SURROGATES:
        raise ValueError(f"has half a character (\\u{code:04x})")
    return chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\x{{{code:x}}}"


def _with_case(text: str, outer: int, inner: int) -> str:
    """The text under its group's own IGNORECASE flag, if that is not the one around it."""
    if inner & re.IGNORECASE and inner & re.ASCII:
        raise ValueError("has the flags a and i together, which constrained output does not support")
    if not (outer ^ inner) & re.IGNORECASE:
        return text
    return f"(?{'i' if inner & re.IGNORECASE else '-i'}:{text})"
