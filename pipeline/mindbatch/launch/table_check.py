"""Checking files that hold rank tables: each by itself, and all against the first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindbatch.launch.rank_table import RankTable
from mindbatch.launch.table_json import at, read_json, shown
from mindbatch.launch.table_reader import STRICT, Leave, examine

ABSENT = object()
MOST_LINES = 100
"""Faults of one file that are told one by one."""


@dataclass
class CheckedFile:
    """A file with its faults and notes; its table and content where they could be read."""

    name: str
    table: RankTable | None = None
    content: Any = None
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_correct(self) -> bool:
        """Whether there is no fault."""
        return not self.faults


def check_files(
    paths: Sequence[Path], num_ranks: int | None = None, leave: Leave = STRICT
) -> list[CheckedFile]:
    """Every file with every fault. Several files are the copies of several servers: they must be the same.

    num_ranks: the number of ranks that each must have.
    """
    checked = [_check(path, num_ranks, leave) for path in paths]
    readable = [each for each in checked if each.table is not None]
    for other in readable[1:]:
        other.faults += _differences(readable[0], other)
    for each in checked:
        each.faults = _first(each.faults, "faults")
        each.notes = _first(each.notes, "notes")
    return checked


def _check(path: Path, num_ranks: int | None, leave: Leave) -> CheckedFile:
    checked = CheckedFile(str(path))
    try:
        checked.content = read_json(path)
    except ValueError as error:
        checked.faults.append(str(error))
        return checked
    checked.table, found = examine(checked.content, leave)
    checked.faults, checked.notes = found.faults, found.notes
    if num_ranks is not None and checked.table.num_ranks != num_ranks:
        checked.faults.append(f"has {checked.table.num_ranks} ranks; num_ranks={num_ranks} is asked for")
    return checked


def _differences(first: CheckedFile, other: CheckedFile) -> Iterator[str]:
    """HCCL compares checksums of the tables that the ranks read: any other value ends a job."""
    if _servers(first).isdisjoint(_servers(other)):
        yield (
            f"has none of the servers of {first.name}; all ranks must read the same table "
            "(mindbatch rank-table merge puts tables together)"
        )
        return
    waiting: list[tuple[str, Any, Any]] = [("", first.content, other.content)]
    while waiting:
        place, theirs, ours = waiting.pop()
        if _outline(theirs) != _outline(ours):
            yield f"{place or 'the table'}: {_outline(ours)}; {_outline(theirs)} in {first.name}"
        elif isinstance(theirs, dict):
            keys = dict.fromkeys([*theirs, *ours])
            below = [(at(place, key), theirs.get(key, ABSENT), ours.get(key, ABSENT)) for key in keys]
            waiting += reversed(below)
        elif isinstance(theirs, list):
            pairs = enumerate(zip(theirs, ours, strict=True))
            waiting += reversed([(f"{place}[{number}]", *pair) for number, pair in pairs])


def _servers(checked: CheckedFile) -> set[str]:
    return {server.server_id for server in checked.table.servers} if checked.table else set()


def _outline(value: Any) -> str:
    """What a value is apart from what is in it."""
    if value is ABSENT:
        return "missing"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return "an object" if isinstance(value, dict) else shown(value)


def _first(lines: list[str], noun: str) -> list[str]:
    if len(lines) <= MOST_LINES:
        return lines
    return [*lines[:MOST_LINES], f"... and {len(lines) - MOST_LINES} more {noun}"]
