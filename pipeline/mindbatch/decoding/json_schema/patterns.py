"""Patterns of a schema: searched in a string as JSON writes it.

JSON Schema means ECMA-262's regular expressions, and most validators their own language's. Where the dialects
differ (\\d, \\w, \\s, the dot, $ before a last line break), a pattern is narrowed to the strings that all of
them accept, or, where strings that match are shut out, widened to those that one of them accepts.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from mindbatch.decoding.json_schema.texts import ANY_CHARACTER, ESCAPES, character
from mindbatch.decoding.python_regex import OPPOSITES, RegexTranslator
from mindbatch.io.regex_tree import BEGINNINGS, ENDS, TOO_DEEP, constants

_SPACES = r"\x{9}-\x{d}\x{20}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
_NARROW = {
    constants.CATEGORY_DIGIT: "0-9",
    constants.CATEGORY_SPACE: _SPACES,
    constants.CATEGORY_WORD: "0-9A-Za-z_",
}
_WIDE = {
    constants.CATEGORY_DIGIT: r"\p{Nd}",
    constants.CATEGORY_SPACE: _SPACES + r"\x{1c}-\x{1f}\x{85}\x{feff}",
    constants.CATEGORY_WORD: r"\p{L}\p{N}\p{M}\p{Pc}",
}
_PLAIN = r"[^\x{0}-\x{1f}\x{22}\x{5c}]"
_ANYTHING = f"{ANY_CHARACTER}*"
_PINNED, _OPEN = 1, 2
_HAS_FLAGS = "has inline flags, which JSON Schema's patterns do not have"
_SPECIAL_SPACES = frozenset(range(0x9, 0xE))


@lru_cache(maxsize=64)
def search_regex(pattern: str, *, is_wide: bool = False) -> str:
    """Returns the JSON texts, without quotes, of the strings in which the pattern is found.

    Raises:
        ValueError: the reason, as words that follow "pattern=...: ".
    """
    try:
        return _PatternTranslator(is_wide).translated(pattern)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error


class _PatternTranslator(RegexTranslator):
    """Edges: _PINNED where an anchor stands, _OPEN where other characters may be, 0 inside."""

    anchor_inside = "has an anchor inside (^, $, \\b...); at its ends they are supported"

    def __init__(self, is_wide: bool) -> None:
        self._is_wide = is_wide

    def translated(self, pattern: str) -> str:
        tree = self.parse(pattern)
        if tree.state.flags & ~re.UNICODE:
            raise ValueError(_HAS_FLAGS)
        return self.bounded(self.sequence(tree, 0, _OPEN, _OPEN))

    def group(self, items: Any, outer: int, inner: int, at_start: int, at_end: int) -> str:
        if outer != inner:
            raise ValueError(_HAS_FLAGS)
        return self.sequence(items, inner, at_start, at_end)

    def sequence(self, items: Any, flags: int, at_start: int, at_end: int) -> str:
        nodes = list(items)
        before = after = ""
        if nodes and nodes[0][0] is constants.AT and nodes[0][1] in BEGINNINGS and at_start:
            at_start = _PINNED
        if nodes and nodes[-1][0] is constants.AT and nodes[-1][1] in ENDS and at_end:
            if self._is_wide and nodes[-1][1] is constants.AT_END:
                after = "(?:" + character(0xA) + ")?"
            at_end = _PINNED
        inner = [node for node in nodes if node[0] is not constants.AT]
        if at_start == _OPEN and not (inner and inner[0][0] in (constants.SUBPATTERN, constants.BRANCH)):
            before, at_start = _ANYTHING, 0
        if at_end == _OPEN and not (inner and inner[-1][0] in (constants.SUBPATTERN, constants.BRANCH)):
            after, at_end = _ANYTHING, 0
        return before + super().sequence(nodes, flags, at_start, at_end) + after

    def character(self, code: int) -> str:
        super().character(code)
        return character(code)

    def any_character(self, flags: int) -> str:
        ends = {0xA} if self._is_wide else {0xA, 0xD, 0x2028, 0x2029}
        return self._characters("^" + "".join(f"\\x{{{end:x}}}" for end in ends), {*ESCAPES} - ends)

    def any_but(self, code: int) -> str:
        return self._characters(f"^\\x{{{code:x}}}", {*ESCAPES} - {code})

    def set_of(self, items: Sequence[Any], flags: int) -> str:
        is_negated = items[0][0] is constants.NEGATE
        members = items[is_negated:]
        is_wide = self._is_wide != is_negated
        text = "".join(_member(op, value, is_wide) for op, value in members)
        special = {code for code in ESCAPES if any(_holds(op, value, code, is_wide) for op, value in members)}
        if is_negated:
            return self._characters("^" + text, {*ESCAPES} - special)
        return self._characters(text, special)

    @staticmethod
    def _characters(members: str, special: set[int]) -> str:
        """Returns one character of a set: as it is, or escaped for those that JSON escapes."""
        escaped = [character(code) for code in sorted(special)]
        return f"(?:{'|'.join([f'[[{members}]&&{_PLAIN}]', *escaped])})"


def _member(op: Any, value: Any, is_wide: bool) -> str:
    if op is constants.LITERAL:
        return f"\\x{{{value:x}}}"
    if op is constants.RANGE:
        return f"\\x{{{value[0]:x}}}-\\x{{{value[1]:x}}}"
    if value in OPPOSITES:
        return f"[^{_category(OPPOSITES[value], not is_wide)}]"
    return _category(value, is_wide)


def _category(name: Any, is_wide: bool) -> str:
    return (_WIDE if is_wide else _NARROW)[name]


def _holds(op: Any, value: Any, code: int, is_wide: bool) -> bool:
    """True if a member of a set has this character, one of those that JSON escapes."""
    if op is constants.LITERAL:
        return bool(code == value)
    if op is constants.RANGE:
        return bool(value[0] <= code <= value[1])
    if value in OPPOSITES:
        return not _holds(op, OPPOSITES[value], code, not is_wide)
    if value is constants.CATEGORY_SPACE:
        return code in _SPECIAL_SPACES or (is_wide and 0x1C <= code <= 0x1F)
    return False
