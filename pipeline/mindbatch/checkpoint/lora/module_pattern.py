"""Matches names of modules against regular expressions of adapters, in bounded time whatever they say.

A name is matched by sets of positions: each node of the expression's tree maps the positions at which it may
begin to those at which it may end. So nothing is tried twice, and work is counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Set
from typing import Any

from mindbatch.io.regex_tree import BEGINNINGS, ENDS, MOST_NESTING, TOO_DEEP, constants, regex_tree

MOST_CHARACTERS = 10_000
MOST_STEPS = 20_000_000
"""Positions that an expression may be tried at, over all names."""

_Node = Callable[[str, Set[int]], Set[int]]
_Test = Callable[[str], bool]
_CATEGORIES: dict[Any, _Test] = {
    constants.CATEGORY_DIGIT: str.isdecimal,
    constants.CATEGORY_NOT_DIGIT: lambda character: not character.isdecimal(),
    constants.CATEGORY_SPACE: str.isspace,
    constants.CATEGORY_NOT_SPACE: lambda character: not character.isspace(),
    constants.CATEGORY_WORD: lambda character: character.isalnum() or character == "_",
    constants.CATEGORY_NOT_WORD: lambda character: not (character.isalnum() or character == "_"),
}


class ModulePattern:
    """A regular expression of Python's `re`. ValueError says why it cannot be used."""

    def __init__(self, pattern: str) -> None:
        self._steps = 0
        tree = regex_tree(pattern, MOST_CHARACTERS)
        if tree.state.flags & ~re.UNICODE:
            raise ValueError("has flags, which names of modules do not need")
        self._whole = self._sequence(tree, 0)

    def matches(self, name: str) -> bool:
        """Matches as re.fullmatch. ValueError when that takes too long."""
        return len(name) in self._whole(name, {0})

    def matches_end(self, name: str) -> bool:
        """True if the full name, or what follows one of its dots, matches; ValueError as of `matches`."""
        starts = {0} | {place + 1 for place, character in enumerate(name) if character == "."}
        return len(name) in self._whole(name, starts)

    def matches_start(self, name: str) -> bool:
        """Matches as re.match. ValueError as of `matches`."""
        return bool(self._whole(name, {0}))

    def _sequence(self, items: Iterable[Any], depth: int) -> _Node:
        if depth > MOST_NESTING:
            raise ValueError(TOO_DEEP)
        nodes = [self._counted(self._node(op, value, depth)) for op, value in items]

        def run(name: str, starts: Set[int]) -> Set[int]:
            for node in nodes:
                if not starts:
                    break
                starts = node(name, starts)
            return starts

        return run

    def _counted(self, node: _Node) -> _Node:
        def run(name: str, starts: Set[int]) -> Set[int]:
            self._steps += len(starts)
            if self._steps > MOST_STEPS:
                raise ValueError("takes too long to be matched")
            return node(name, starts)

        return run

    def _node(self, op: Any, value: Any, depth: int) -> _Node:
        if op in (constants.LITERAL, constants.NOT_LITERAL, constants.ANY, constants.IN):
            return _one(_test(op, value))
        if op is constants.BRANCH:
            branches = [self._sequence(branch, depth + 1) for branch in value[1]]
            return lambda name, starts: {end for branch in branches for end in branch(name, starts)}
        if op is constants.SUBPATTERN:
            _, added, removed, items = value
            if added or removed:
                raise ValueError("has flags, which names of modules do not need")
            return self._sequence(items, depth + 1)
        if op in (constants.MAX_REPEAT, constants.MIN_REPEAT):
            return _repeat(value[0], value[1], self._sequence(value[2], depth + 1))
        if op is constants.AT:
            return _anchor(value)
        if op in (constants.ASSERT, constants.ASSERT_NOT):
            return self._look_around(op is constants.ASSERT, *value, depth=depth)
        if str(op) == "FAILURE":
            return lambda name, starts: set()
        raise ValueError(f"has {str(op).lower()}, which is not supported in names of modules")

    def _look_around(self, wanted: bool, direction: int, items: Any, *, depth: int) -> _Node:
        inner = self._sequence(items, depth + 1)
        if direction > 0:
            return lambda name, starts: {at for at in starts if bool(inner(name, {at})) == wanted}
        width = items.getwidth()[0]  # the parser accepts fixed widths only

        def behind(name: str, at: int) -> bool:
            return at >= width and at in inner(name, {at - width})

        return lambda name, starts: {at for at in starts if behind(name, at) == wanted}


def _one(test: _Test) -> _Node:
    """A node of exactly one character."""
    return lambda name, starts: {at + 1 for at in starts if at < len(name) and test(name[at])}


def _test(op: Any, value: Any) -> _Test:
    if op is constants.LITERAL:
        return lambda character: ord(character) == value
    if op is constants.NOT_LITERAL:
        return lambda character: ord(character) != value
    if op is constants.ANY:
        return lambda character: character != "\n"
    if op is constants.RANGE:
        return lambda character: value[0] <= ord(character) <= value[1]
    if op is constants.CATEGORY:
        return _CATEGORIES[value]
    negated = value[0][0] is constants.NEGATE
    tests = [_test(*item) for item in value[negated:]]
    return lambda character: any(test(character) for test in tests) != negated


def _repeat(low: int, high: int, inner: _Node) -> _Node:
    def run(name: str, starts: Set[int]) -> Set[int]:
        for _ in range(low):
            before, starts = starts, inner(name, starts)
            if not starts or starts == before:  # the same for however many more
                break
        reached, newest, count = {*starts}, starts, low
        while newest and count < high:
            newest = inner(name, newest) - reached
            reached |= newest
            count += 1
        return reached

    return run


def _anchor(kind: Any) -> _Node:
    if kind in BEGINNINGS:
        return lambda name, starts: {at for at in starts if at == 0}
    if kind in ENDS:
        return lambda name, starts: {at for at in starts if at == len(name)}
    wanted = kind is constants.AT_BOUNDARY
    return lambda name, starts: {at for at in starts if _is_boundary(name, at) == wanted}


def _is_boundary(name: str, at: int) -> bool:
    is_word = _CATEGORIES[constants.CATEGORY_WORD]
    before, after = at > 0 and is_word(name[at - 1]), at < len(name) and is_word(name[at])
    return before != after
