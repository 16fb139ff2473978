"""Owns translating a regular expression of Python's `re` to the syntax that the grammar library reads.

What matches the result matches the pattern under `re.fullmatch`. Python's own parser reads it, so that what
the two syntaxes write alike and mean differently (sets in sets, \\w, $, flags) means what Python means.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from mindbatch.io.regex_tree import BEGINNINGS, ENDS, MAX_NESTING, TOO_DEEP, constants, regex_tree

MAX_CHARACTERS = 1 << 16
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
OPPOSITES = {
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


def literal(text: str) -> str:
    """Returns a regular expression that matches exactly this text."""
    return "".join(c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)


def translated(pattern: str) -> str:
    """Returns the pattern in the syntax of Rust's regex crate.

    Raises:
        ValueError: the reason, as words that follow "decoding.regex=...: ".
    """
    return _FullMatchTranslator().translated(pattern)


class RegexTranslator:
    """Walks the tree of a pattern. `at_start` and `at_end` of a method are true where nothing precedes its
    nodes, or follows them, so that an anchor holds there. Kinds of translation say what characters become."""

    anchor_inside: str
    """The reason that an anchor elsewhere is refused for."""

    def parse(self, pattern: str) -> Any:
        return regex_tree(pattern, MAX_CHARACTERS)

    def bounded(self, text: str) -> str:
        """Returns the text, if the library can read groups of its depth."""
        # Every parenthesis of the text is a group: literal ones are written by number.
        depths = accumulate((character == "(") - (character == ")") for character in text)
        if max(depths, default=0) > MAX_NESTING:
            raise ValueError(TOO_DEEP)
        return text

    def sequence(self, items: Iterable[Any], flags: int, at_start: int, at_end: int) -> str:
        nodes = list(items)
        first, last = 0, len(nodes)
        while at_start and first < last and nodes[first] in _anchors(BEGINNINGS):
            first += 1
        while at_end and first < last and nodes[last - 1] in _anchors(ENDS):
            last -= 1
        return "".join(
            self.node(op, value, flags, at_start * (index == first), at_end * (index == last - 1))
            for index, (op, value) in enumerate(nodes[first:last], first)
        )

    def node(self, op: Any, value: Any, flags: int, at_start: int, at_end: int) -> str:
        if op is constants.LITERAL:
            return self.character(value)
        if op is constants.NOT_LITERAL:
            return self.any_but(value)
        if op is constants.ANY:
            return self.any_character(flags)
        if op is constants.IN:
            return self.set_of(value, flags)
        if op is constants.BRANCH:
            return f"(?:{'|'.join(self.sequence(branch, flags, at_start, at_end) for branch in value[1])})"
        if op is constants.SUBPATTERN:
            _, added, removed, items = value
            inner = (flags | added) & ~removed
            return f"(?:{self.group(items, flags, inner, at_start, at_end)})"
        if op in (constants.MAX_REPEAT, constants.MIN_REPEAT):
            return self.repeat(value, flags, at_start, at_end)
        if op is constants.AT:
            raise ValueError(self.anchor_inside)
        construct = _UNSUPPORTED.get(str(op), str(op))
        raise ValueError(f"has {construct}, which constrained output does not support")

    def group(self, items: Any, outer: int, inner: int, at_start: int, at_end: int) -> str:
        """Returns the items of a group, whose flags are `inner`."""
        raise NotImplementedError

    def repeat(self, value: Any, flags: int, at_start: int, at_end: int) -> str:
        low, high, items = value
        once = high == 1  # only then is what stands inside at both edges, if it is there at all
        inner = self.sequence(items, flags, at_start * once, at_end * once)
        return f"(?:{inner}){{{low},{'' if high is constants.MAXREPEAT else high}}}"

    def character(self, code: int) -> str:
        if code in _SURROGATES:
            raise ValueError(f"has half a character (\\u{code:04x})")
        return literal(chr(code))

    def any_character(self, flags: int) -> str:
        raise NotImplementedError

    def any_but(self, code: int) -> str:
        raise NotImplementedError

    def set_of(self, items: Sequence[Any], flags: int) -> str:
        raise NotImplementedError


class _FullMatchTranslator(RegexTranslator):
    """Translates to a pattern that matches a text where `re.fullmatch` does."""

    anchor_inside = "has an anchor inside (^, $, \\b...); the whole output is matched, so none is needed"

    def translated(self, pattern: str) -> str:
        tree = self.parse(pattern)
        flags = tree.state.flags
        try:
            text = _with_case(self.sequence(tree, flags, 1, 1), 0, flags)
        except RecursionError as error:
            raise ValueError(TOO_DEEP) from error
        return self.bounded(text)

    def group(self, items: Any, outer: int, inner: int, at_start: int, at_end: int) -> str:
        return _with_case(self.sequence(items, inner, at_start, at_end), outer, inner)

    def any_character(self, flags: int) -> str:
        return "(?s:.)" if flags & re.DOTALL else r"[^\x{a}]"

    def any_but(self, code: int) -> str:
        return f"[^{self.character(code)}]"

    def set_of(self, items: Sequence[Any], flags: int) -> str:
        negated = items[0][0] is constants.NEGATE
        members = "".join(self._member(op, value, flags) for op, value in items[negated:])
        return f"[{'^' if negated else ''}{members}]"

    def _member(self, op: Any, value: Any, flags: int) -> str:
        if op is constants.LITERAL:
            return self.character(value)
        if op is constants.RANGE:
            return f"{self.character(value[0])}-{self.character(value[1])}"
        ascii_only = bool(flags & re.ASCII)
        if value in OPPOSITES:
            return f"[^{_CATEGORIES[OPPOSITES[value]][ascii_only]}]"
        return _CATEGORIES[value][ascii_only]


def _anchors(kinds: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [(constants.AT, kind) for kind in kinds]


def _with_case(text: str, outer: int, inner: int) -> str:
    """Returns the text under its group's own IGNORECASE flag, if that is not the one around it."""
    if inner & re.IGNORECASE and inner & re.ASCII:
        raise ValueError("has the flags a and i together, which constrained output does not support")
    if not (outer ^ inner) & re.IGNORECASE:
        return text
    return f"(?{'i' if inner & re.IGNORECASE else '-i'}:{text})"
