"""Bounds the costs of a tokenizer's Oniguruma expressions by their syntax tree from Python's parser."""

import re
from typing import Any

from mindbatch.io.regex_tree import constants, regex_tree

_MAX_CHARACTERS = 10_000
# The end of most expressions of byte-level tokenizers; its last alternative matches all white space.
_SPACES = re.compile(r"(\|\\s\*\[\\r\\n\]\+?)?(\|\\s\+\(\?!\\S\))?\|\\s\+\Z")
_UNICODE_CLASS = re.compile(r"\\[pP](\{\^?\w+\}|\w)")
_READ_DIFFERENTLY = re.compile(r"\}[?+]|\(\?[~@]|\(\?[a-z]*x|\\[zZA]")
_OTHER_SET = re.compile(r"\[\^?\]|\[[^\]]*(\[|&&)")
_SAME = {r"\A": "^", r"\Z": "$", r"\z": "$"}


def _tree(pattern: str) -> Any:
    """Parses an Oniguruma expression. Raises ValueError if Python would read it differently."""
    text = _UNICODE_CLASS.sub(r"\\w", pattern)
    if _has_other_sets(text):
        raise ValueError("has a set that Python reads differently")
    return regex_tree(_READ_DIFFERENTLY.sub(lambda match: _SAME.get(match[0], r"\q"), text), _MAX_CHARACTERS)


def _has_other_sets(pattern: str) -> bool:
    """True if a set contains another set, an intersection, or a bracket at its start."""
    plain = re.sub(r"\\.", "_", pattern, flags=re.DOTALL)
    return bool(_OTHER_SET.search(plain))


def shortest_match(pattern: str) -> int:
    """Returns the minimal length of a match; 0 if it is not known."""
    try:
        return int(_tree(pattern).getwidth()[0])
    except ValueError:
        return 0


def is_simple(pattern: str) -> bool:
    """True if the time of a match attempt is linear in the length of the matched text."""
    try:
        return _is_linear([*_tree(_SPACES.sub("", pattern))])
    except ValueError:
        return False


def _is_linear(nodes: list[Any]) -> bool:
    """True if nothing that may fail follows an unbounded repeat, since it would be tried at each length."""
    first = next((index for index, node in enumerate(nodes) if not _is_bounded(node)), None)
    if first is None:
        return True
    operation, value = nodes[first]
    if operation is constants.BRANCH:
        is_last = all(_is_linear([*branch]) for branch in value[1])
    elif operation is constants.SUBPATTERN:
        is_last = _is_linear([*value[3]])
    else:
        is_last = _is_repeat_of_one(operation, value)
    return is_last and all(map(_is_optional, nodes[first + 1 :]))


def _is_optional(node: Any) -> bool:
    operation, value = node
    return (operation in _REPEATS and value[0] == 0) and (
        _is_bounded(node) or _is_repeat_of_one(operation, value)
    )


def _is_bounded(node: Any) -> bool:
    operation, value = node
    if operation in _REPEATS:
        _, max_count, inside = value
        if not (max_count <= 1 or (max_count <= _MAX_COUNTED and _is_repeat_of_one(operation, value))):
            return False
        return all(map(_is_bounded, inside))
    if operation is constants.BRANCH:
        return all(_is_bounded(inner) for branch in value[1] for inner in branch)
    if operation is constants.SUBPATTERN:
        return all(map(_is_bounded, value[3]))
    if operation in (constants.ASSERT, constants.ASSERT_NOT):
        return all(map(_is_bounded, value[1]))
    return operation in (*_ONE_CHARACTER, constants.AT)


def _is_repeat_of_one(operation: Any, value: Any) -> bool:
    """True for a repeat of one character or set, but not of a group."""
    return operation in _REPEATS and len(value[2]) == 1 and value[2][0][0] in _ONE_CHARACTER


_REPEATS = (constants.MAX_REPEAT, constants.MIN_REPEAT)
_MAX_COUNTED = 8
"""Bounded repeats of one character up to this count are treated as plain characters."""
_ONE_CHARACTER = (constants.LITERAL, constants.NOT_LITERAL, constants.ANY, constants.IN, constants.CATEGORY)
