"""First difference between two results of one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

CONTEXT = 30
"""Characters shown on either side of a difference."""

_END = object()


@dataclass(frozen=True)
class RowDifference:
    """The first difference of two results.

    generation: which sample differs. token: the first position at which its token ids do; None where they are
    the same, and only text or finish reason differ. first, second: the texts around the difference, or what
    else differs, in words.
    """

    generation: int
    token: int | None
    first: str
    second: str


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> RowDifference | None:
    """Finds the first difference of two results in the ledger; None when the generations are the same.

    Log-probabilities are not compared: the same tokens are the same result.
    """
    pairs = zip_longest(first["generations"], second["generations"], fillvalue=None)
    for number, (one, other) in enumerate(pairs):
        if one is None or other is None:
            return RowDifference(number, None, _presence(one), _presence(other))
        found = _between(number, one, other)
        if found:
            return found
    return None


def _between(number: int, one: Mapping[str, Any], other: Mapping[str, Any]) -> RowDifference | None:
    token = first_difference(one["token_ids"], other["token_ids"])
    if token is None and one["text"] == other["text"]:
        if one["finish_reason"] == other["finish_reason"]:
            return None
        return RowDifference(
            number, None, *(f"finish_reason {each['finish_reason']}" for each in (one, other))
        )
    texts = str(one["text"]), str(other["text"])
    place = first_difference(*texts)
    if place is None:  # other tokens for the same text
        ids = (_around([str(token) for token in each["token_ids"]], token or 0, " ") for each in (one, other))
        return RowDifference(number, token, *(f"token ids {text}" for text in ids))
    return RowDifference(number, token, *(_around(text, place, "") for text in texts))


def first_difference(one: Sequence[Any], other: Sequence[Any]) -> int | None:
    """The first index at which two sequences differ, be it the end of one; None when they do not."""
    if one == other:
        return None
    pairs = zip_longest(one, other, fillvalue=_END)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), None)


def _around(items: Sequence[str], place: int, joint: str) -> str:
    start, end = max(0, place - CONTEXT), place + CONTEXT
    cut = joint.join(items[start:end])
    return ("..." if start else "") + cut + ("..." if end < len(items) else "")


def _presence(generation: object) -> str:
    return "no such generation" if generation is None else "one generation more"
