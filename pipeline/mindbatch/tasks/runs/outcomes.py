"""Outcomes of the rows of a run, read from its ledger: lengths, finish reasons, errors, a few rows."""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import nsmallest
from pathlib import Path
from typing import Any

import orjson
import xxhash

from mindbatch.io.regular_file import open_regular
from mindbatch.io.storage import StorageError
from mindbatch.ledger.entries import Entry, decode
from mindbatch.ledger.ledger import EntryLocation, Ledger
from mindbatch.ledger.run_folder import RunFolder
from mindbatch.ledger.run_record import RunRecord

MAX_WHOLE_BYTES = 64 << 20
"""Size of a file that is read whole; of a larger one NUM_BLOCKS blocks are, evenly spread."""
NUM_BLOCKS = 64
BLOCK_BYTES = 1 << 20
NUM_ROWS = 10
_MAX_PATTERN = 300
_VALUES = re.compile(r"'[^']*'|\"[^\"]*\"|\d[\d,.]*")
_LOCATION = re.compile(r".*?:\d+: ")
"""Begins the message of an error in OpenAI's format."""


@dataclass
class ErrorKind:
    """Errors whose reasons differ in numbers and quoted texts only. reason, key: of the first one."""

    stage: str
    reason: str
    key: str | None
    count: int = 0


@dataclass
class Outcomes:
    """Outcomes of the rows that have ended.

    prompt_tokens, output_tokens: lengths of each prompt and each generation. finish_reasons: of generations.
    num_read, num_bytes: how much of the ledger was read, and its size.
    rows: some rows, always the same ones of a run.
    """

    prompt_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    errors: list[ErrorKind] = field(default_factory=list)
    rows: list[Entry] = field(default_factory=list)
    num_read: int = 0
    num_bytes: int = 0

    @property
    def is_whole(self) -> bool:
        return self.num_read >= self.num_bytes


@dataclass(frozen=True, slots=True)
class _Summary:
    location: EntryLocation
    prompt_tokens: int
    output_tokens: tuple[int, ...]
    finish_reasons: tuple[str, ...]
    error: tuple[str, str] | None


def read_outcomes(folder: RunFolder, record: RunRecord, *, is_complete: bool) -> Outcomes:
    """Reads the ledger of a run, which may still be written, and the list of all errors of a complete one.

    Raises:
        ConfigError: the ledger is of other settings or another format.
        StorageError: it cannot be read.
    """
    outcomes = Outcomes()
    with Ledger(folder, record.fingerprint) as ledger:
        entries = _entries(folder, ledger, outcomes)
        latest = {entry.key: _summary(entry, location) for entry, location in entries}
        for row in latest.values():
            if row.error is None:
                outcomes.prompt_tokens.append(row.prompt_tokens)
                outcomes.output_tokens += row.output_tokens
                outcomes.finish_reasons.update(row.finish_reasons)
        keys = nsmallest(
            NUM_ROWS, latest, key=lambda key: xxhash.xxh3_64_intdigest(f"{record.fingerprint}{key}".encode())
        )
        for key in sorted(keys, key=lambda key: latest[key].location.offset):
            with suppress(StorageError):  # damaged since
                outcomes.rows.append(ledger.read(latest[key].location))
    errors = _Errors()
    if not (is_complete and errors.add_file(folder.errors)):
        for key, row in latest.items():
            if row.error is not None:
                errors.add(*row.error, key)
    outcomes.errors = errors.ordered()
    return outcomes


def _entries(folder: RunFolder, ledger: Ledger, outcomes: Outcomes) -> Iterator[tuple[Entry, EntryLocation]]:
    """Yields the entries of a ledger, or of blocks of it, in their order; counts what was read."""
    with suppress(OSError):
        outcomes.num_bytes = folder.ledger.stat().st_size
    if outcomes.num_bytes <= MAX_WHOLE_BYTES:
        outcomes.num_read = outcomes.num_bytes
        yield from ledger.recover()
        return
    ledger.recover()  # refuses another format; nothing is read
    try:
        for offset, line in _lines(folder.ledger):
            outcomes.num_read += len(line)
            entry = decode(line)
            if entry is not None:
                yield entry, EntryLocation(0, offset, len(line))
    except OSError as error:
        raise StorageError.reading(folder.ledger, error) from error


def _summary(entry: Entry, location: EntryLocation) -> _Summary:
    body = entry.body
    if entry.kind == "error":
        return _Summary(location, 0, (), (), (str(body.get("stage")), str(body.get("reason"))))
    generations = body["generations"]
    return _Summary(
        location,
        body["prompt_tokens"],
        tuple(len(generation["token_ids"]) for generation in generations),
        tuple(sys.intern(str(generation["finish_reason"])) for generation in generations),
        None,
    )


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a file with their offsets; of a large one those that begin in blocks, evenly
    spread."""
    with open(open_regular(path), "rb") as file:
        size = file.seek(0, 2)
        is_whole = size <= MAX_WHOLE_BYTES
        num_blocks, block_bytes = (1, size) if is_whole else (NUM_BLOCKS, BLOCK_BYTES)
        end = 0
        for number in range(num_blocks):
            start = number * (size - block_bytes) // max(num_blocks - 1, 1)
            if start > end:
                file.seek(start)
                file.readline()  # the line that the block begins within
            else:
                file.seek(end)
            end = file.tell()
            while end < start + block_bytes and (line := file.readline()):
                yield end, line
                end += len(line)


class _Errors:
    """Counts errors by kind."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], ErrorKind] = {}

    def add(self, stage: str, reason: str, key: str | None) -> None:
        pattern = stage, _VALUES.sub("_", reason)[:_MAX_PATTERN]
        self._kinds.setdefault(pattern, ErrorKind(stage, reason, key)).count += 1

    def add_file(self, path: Path) -> bool:
        """Adds the errors of a finished run, those before the model included. False if there is no file."""
        try:
            for _, line in _lines(path):
                with suppress(orjson.JSONDecodeError):
                    self._add_line(orjson.loads(line))
        except OSError:
            return False
        return True

    def _add_line(self, content: Any) -> None:
        match content:
            case {"stage": str(stage), "reason": str(reason), **rest}:
                key = rest.get("key")
            case {"error": {"code": stage, "message": str(reason)}, "custom_id": key}:
                pass
            case {"response": {"body": {"error": {"message": str(reason), **error}}}, "custom_id": key}:
                stage = error.get("code") or error.get("type")
            case _:
                return
        if "custom_id" in content and (location := _LOCATION.match(reason)):
            reason = reason[location.end() :]
        self.add(str(stage), reason, key if isinstance(key, str) else None)

    def ordered(self) -> list[ErrorKind]:
        return sorted(self._kinds.values(), key=lambda kind: (-kind.count, kind.stage, kind.reason))
