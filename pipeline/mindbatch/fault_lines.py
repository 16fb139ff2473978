"""The parts of a fault line: a value shown shortly, and the near name offered for a misspelt one."""

from collections.abc import Callable, Iterable
from heapq import nlargest

_MAX_COMPARED = 32
_MAX_NAMES = 20_000
_MAX_COMPARED_LENGTH = 512


def shown(value: object, longest: int = 60, notation: Callable[[object], str] = repr) -> str:
    """A value as `notation` writes it, shortened to `longest` characters."""
    try:
        text = notation(value)
    except (RecursionError, ValueError):  # nested without end, or a number of thousands of digits
        return f"{type(value).__name__} too large to be shown"
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def as_typed(value: object) -> str:
    """A value as one types it on a command line, on one line."""
    words = {None: "null", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else str(value)
    return " ".join(text.split())


def nearest(word: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The name most like `word`, ignoring case; None when nothing is as like as `cutoff`, of 1.

    Words of more than 512 characters are compared with none, and none with more than 20,000 names.
    """
    from difflib import get_close_matches  # only a mistake pays for the import

    by_lower_case = {name.lower(): name for name in names}
    if len(word) > _MAX_COMPARED_LENGTH or len(by_lower_case) > _MAX_NAMES:
        return None
    likely = _likely(word.lower(), by_lower_case)
    found = get_close_matches(word.lower(), likely, n=1, cutoff=cutoff)
    return by_lower_case[found[0]] if found else None


def did_you_mean(
    word: str, names: Iterable[str], cutoff: float = 0.6, notation: Callable[[str], object] = str
) -> str:
    """The end of a fault line: `; did you mean NAME?` with the name nearest to `word`, or nothing."""
    name = nearest(word, names, cutoff)
    return "" if name is None else f"; did you mean {notation(name)}?"


def _likely(word: str, names: Iterable[str]) -> list[str]:
    """A few names: with all of them difflib takes half a minute for 60 layers with names of another kind."""
    names = list(names)
    if len(names) <= _MAX_COMPARED:
        return names
    pairs = _pairs(word)
    return nlargest(_MAX_COMPARED, names, key=lambda name: len(pairs & _pairs(name)) / (len(name) + 1))


def _pairs(text: str) -> set[str]:
    """Its neighbouring characters."""
    return {text[place : place + 2] for place in range(len(text) - 1)}
