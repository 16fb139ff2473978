"""Matches names of modules against regular expressions of adapters, in bounded time whatever they say."""

import math
import re
from collections.abc import Callable
from time import thread_time
from typing import Any

import regex

from mindbatch.io.regex_tree import TOO_DEEP, regex_tree

MOST_CHARACTERS = 10_000
MOST_REPEATED = 100_000
"""Characters of an expression times its numbers of repeats: `regex` writes them out when it compiles."""
MOST_SECONDS = 5.0
"""Of a processor, for one expression and all names."""

_COUNTS = re.compile(r"\{(\d*),?(\d*)\}")
_OWN_SYNTAX = re.compile(r"\[:|\{(?!\d*,?\d*\})")
"""Named sets and fuzzy matches of `regex`, which are plain characters to `re`."""


class ModulePattern:
    """A regular expression of Python's `re`. ValueError says why it cannot be used."""

    def __init__(self, pattern: str) -> None:
        regex_tree(pattern, MOST_CHARACTERS)  # `regex` takes more than `re`, by which PEFT reads it
        if own := _OWN_SYNTAX.search(pattern):
            raise ValueError(f"has {own[0]!r}, which is not supported in names of modules")
        counts = (max(1, *(int(number or 0) for number in pair)) for pair in _COUNTS.findall(pattern))
        if len(pattern) * math.prod(counts) > MOST_REPEATED:
            raise ValueError("repeats too often")
        try:
            self._pattern = regex.compile(pattern, regex.VERSION0)
        except RecursionError as error:
            raise ValueError(TOO_DEEP) from error
        except regex.error as error:
            raise ValueError(f"is no regular expression ({error})") from error
        self._seconds = MOST_SECONDS

    def matches(self, name: str) -> bool:
        """Matches as re.fullmatch. ValueError when that takes too long."""
        return self._run(self._pattern.fullmatch, name)

    def matches_end(self, name: str) -> bool:
        """True if the full name, or what follows one of its dots, matches; ValueError as of `matches`."""
        starts = [0, *(place + 1 for place, character in enumerate(name) if character == ".")]
        return any(self._run(self._pattern.fullmatch, name, start) for start in starts)

    def matches_start(self, name: str) -> bool:
        """Matches as re.match. ValueError as of `matches`."""
        return self._run(self._pattern.match, name)

    def _run(self, match: Callable[..., Any], name: str, start: int = 0) -> bool:
        """Runs a match, during which other threads go on; time left for this expression becomes less."""
        before = thread_time()
        try:
            return match(name, start, concurrent=True, timeout=max(0.001, self._seconds)) is not None
        except (TimeoutError, MemoryError) as error:
            raise ValueError("takes too long to be matched") from error
        finally:
            self._seconds -= thread_time() - before
