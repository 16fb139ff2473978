"""A line of the ledger: a JSON object whose last member is a check of the rest."""

from dataclasses import dataclass
from typing import Any, Literal

import orjson
import xxhash

EntryKind = Literal["result", "error"]

_CHECK = b',"check":"'
_END = b'"}\n'
_NUM_CHECK_BYTES = len(_CHECK) + 16 + len(_END)


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished row. row: the digest of the row; body: the result, or the stage and reason of its error."""

    key: str
    row: str
    kind: EntryKind
    body: dict[str, Any]


def encode(entry: Entry, session: int) -> bytes:
    """Returns the entry's line, newline included. Numbers as keys in the body become text; NaN becomes null.

    session: the number of the session that ran the row.
    """
    named = {"session": session, "key": entry.key, "row": entry.row, "kind": entry.kind, "body": entry.body}
    return seal(named)


def decode(line: bytes) -> Entry | None:
    """Returns the entry of a line, newline included; None if it is torn, damaged or no entry."""
    return entry_of(unseal(line))


def entry_of(content: dict[str, Any] | None) -> Entry | None:
    """Returns the entry in the content of a line; None if it has none."""
    match content:
        case {"key": str(key), "row": str(row), "kind": ("result" | "error") as kind, "body": dict(body)}:
            return Entry(key, row, kind, body)
    return None


def seal(content: dict[str, Any]) -> bytes:
    """Returns a non-empty JSON object as a line that ends in the XXH3 (64 bit, hex) of all before
    `,"check"`."""
    checked = orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS)[:-1]
    return checked + _CHECK + xxhash.xxh3_64_hexdigest(checked).encode() + _END


def unseal(line: bytes) -> dict[str, Any] | None:
    """Returns the content of a sealed line, with its check; None unless every byte is as it was written."""
    checked = line[:-_NUM_CHECK_BYTES]
    if line[-_NUM_CHECK_BYTES:] != _CHECK + xxhash.xxh3_64_hexdigest(checked).encode() + _END:
        return None
    try:
        content = orjson.loads(line)
    except orjson.JSONDecodeError:  # sealed by something else
        return None
    return content if isinstance(content, dict) else None
