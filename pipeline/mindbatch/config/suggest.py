"""The near name offered for a misspelt one."""

from collections.abc import Iterable


def nearest(word: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The name most like `word`, ignoring case; None when nothing is as like as `cutoff`, of 1."""
    from difflib import get_close_matches  # only a mistake pays for the import

    by_lower_case = {name.lower(): name for name in names}
    found = get_close_matches(word.lower(), by_lower_case, n=1, cutoff=cutoff)
    return by_lower_case[found[0]] if found else None


def did_you_mean(name: str | None) -> str:
    """The end of a fault line: `; did you mean NAME?`, or nothing without a name."""
    return f"; did you mean {name}?" if name else ""
