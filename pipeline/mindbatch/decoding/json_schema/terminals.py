"""Expressions of the grammar library for single JSON values: what a terminal is made of."""

from collections.abc import Iterable
from typing import NamedTuple


class Leaf(NamedTuple):
    """The texts of one JSON value that has no parts.

    text: a terminal's expression (regular expressions joined by & and ~), or a rule's right side.
    may_be_empty: no text may match it, which the library has to decide.
    """

    text: str
    is_rule: bool = False
    may_be_empty: bool = False


def regex(pattern: str) -> str:
    """Returns a regular expression as an operand of a terminal."""
    return "/" + pattern.replace("/", r"\x{2f}") + "/"


def either(patterns: Iterable[str]) -> str:
    """Returns a regular expression that matches all texts of several."""
    parts = list(dict.fromkeys(patterns))
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


def all_of(operands: Iterable[str]) -> str:
    """Returns a terminal whose texts match every operand."""
    return " & ".join(dict.fromkeys(operands))
