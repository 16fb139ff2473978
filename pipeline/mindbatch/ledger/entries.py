"""A line of the ledger: a JSON object whose last member is a check of the rest."""

from dataclasses import dataclass
from typing import Any, Literal

import orjson
import xxhash

Kind = Literal["result", "error"]

_CHECK = b',"check":"'
_END = b'"}\n'
_NUM_CHECK_BYTES = len(_CHECK) + 16 + len(_END)


@dataclass(frozen=True, slots=True)
class Entry:
    """One finished row. row: the digest of what was asked; body: the result, or the stage and reason."""

    key: str
    row: str
    kind: Kind
    body: dict[str, Any]


def encode(entry: Entry, session: int) -> bytes:
    """The entry's line, newline included. Keys in the body that are numbers become text; NaN becomes null.

    session: the number of the session that ran the row.
    """
    named = {"session": session, "key": entry.key, "row": entry.row, "kind": entry.kind, "body": entry.body}
    return seal(named)


def decode(line: bytes) -> Entry | None:
    """The entry of a line, newline included; None when it is torn, damaged or something else."""
    return entry_of(unseal(line))


def entry_of(content: dict[str, Any] | None) -> Entry | None:
    """The entry that a line says; None when it says something else."""
    match content:
        case {"key": str(key), "row": str(row), "kind": ("result" | "error") as kind, "body": dict(body)}:
            return Entry(key, row, kind, body)
    return None


def seal(content: dict[str, Any]) -> bytes:
    """A JSON object, not empty, as a line that ends in the XXH3 (64 bit, hex) of all before `,"check"`."""
    checked = orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS)[:-1]
    return checked + _CHECK + xxhash.xxh3_64_hexdigest(checked).encode() + _END


def unseal(line: bytes) -> dict[str, Any] | None:
    """The content of a sealed line, the check among it; None unless every byte is as it was written."""
    checked = line[:-_NUM_CHECK_BYTES]
    if line[-_NUM_CHECK_BYTES:] != _CHECK + xxhash.xxh3_64_hexdigest(checked).encode() + _END:
        return None
    try:
        content = orjson.loads(line)
    except orjson.JSONDecodeError:  # sealed by something else
        return None
    return content if isinstance(content, dict) else None
