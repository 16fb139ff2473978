"""Comparing what two runs have of one row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from mindbatch.ledger.entries import Entry


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The position of the first token that differs or that only one of them has; None if they are equal."""
    pairs = zip_longest(one, other)
    return next((position for position, (left, right) in enumerate(pairs) if left != right), None)


def differences(one: Entry, other: Entry) -> list[str]:
    """A line for each generation that differs, or for what else does; log-probabilities do not count."""
    if one.kind != other.kind:
        return [f"{_named(one)} -> {_named(other)}"]
    if one.kind == "error":
        return [] if one.body == other.body else [f"{_named(one)} -> {_named(other)}"]
    before, after = one.body["generations"], other.body["generations"]
    if len(before) != len(after):
        return [f"{len(before)} generations -> {len(after)}"]
    pairs = zip(before, after, strict=True)
    return [line for left, right in pairs for line in _generation_difference(left, right)]


def _named(entry: Entry) -> str:
    return f"error ({entry.body['reason']})" if entry.kind == "error" else "a result"


def _generation_difference(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    place = first_difference(one["token_ids"], other["token_ids"])
    if place is not None:
        left, right = _token(one, place), _token(other, place)
        return [f"[{one['index']}] changed: first differing token {place}: {left} -> {right}"]
    if one["text"] != other["text"] or one["finish_reason"] != other["finish_reason"]:
        return [f"[{one['index']}] changed: the same tokens, another text or end"]
    return []


def _token(generation: dict[str, Any], place: int) -> str:
    tokens = generation["token_ids"]
    return str(tokens[place]) if place < len(tokens) else "none"
