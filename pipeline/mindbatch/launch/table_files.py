"""Files of rank tables: checked by themselves and against each other, merged, named and written."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindbatch.io.regular_file import first_bytes
from mindbatch.io.storage import StorageError, write_whole
from mindbatch.launch.rank_table import RankTable, Server
from mindbatch.launch.table_json import at, read_json, same_addresses, shown
from mindbatch.launch.table_reader import (
    STRICT,
    AllowedDeviations,
    RankTableError,
    examine,
    read_rank_table,
    verify,
)

ABSENT = object()
MAX_LINES = 100
"""Errors listed of one file."""


@dataclass
class CheckedFile:
    """A file with its errors and notes; its table and content where they could be read."""

    name: str
    table: RankTable | None = None
    content: Any = None
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_correct(self) -> bool:
        return not self.errors


def check_files(
    paths: Sequence[Path], num_ranks: int | None = None, allowed: AllowedDeviations = STRICT
) -> list[CheckedFile]:
    """Checks every file for every error. Several are copies for several servers: they must be the same.

    num_ranks: the number of ranks that each must have.
    """
    checked = [_check(path, num_ranks, allowed) for path in paths]
    readable = [file for file in checked if file.table is not None]
    for other in readable[1:]:
        other.errors += _differences(readable[0], other)
    for file in checked:
        file.errors = _first(file.errors, "errors")
        file.notes = _first(file.notes, "notes")
    return checked


def _check(path: Path, num_ranks: int | None, allowed: AllowedDeviations) -> CheckedFile:
    checked = CheckedFile(str(path))
    try:
        checked.content = read_json(path)
    except ValueError as error:
        checked.errors.append(str(error))
        return checked
    checked.table, findings = examine(checked.content, allowed)
    checked.errors, checked.notes = findings.errors, findings.notes
    if num_ranks is not None and checked.table.num_ranks != num_ranks:
        checked.errors.append(f"has {checked.table.num_ranks} ranks; num_ranks={num_ranks} is requested")
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
        location, theirs, ours = waiting.pop()
        if _outline(theirs) != _outline(ours):
            yield f"{location or 'the table'}: {_outline(ours)}; {_outline(theirs)} in {first.name}"
        elif isinstance(theirs, dict):
            keys = dict.fromkeys([*theirs, *ours])
            below = [(at(location, key), theirs.get(key, ABSENT), ours.get(key, ABSENT)) for key in keys]
            waiting += reversed(below)
        elif isinstance(theirs, list):
            pairs = enumerate(zip(theirs, ours, strict=True))
            waiting += reversed([(f"{location}[{number}]", *pair) for number, pair in pairs])


def _servers(checked: CheckedFile) -> set[str]:
    return {server.server_id for server in checked.table.servers} if checked.table else set()


def _outline(value: Any) -> str:
    if value is ABSENT:
        return "missing"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return "an object" if isinstance(value, dict) else shown(value)


def _first(lines: list[str], noun: str) -> list[str]:
    if len(lines) <= MAX_LINES:
        return lines
    return [*lines[:MAX_LINES], f"... and {len(lines) - MAX_LINES} more {noun}"]


def merge_files(paths: Sequence[Path], allowed: AllowedDeviations) -> tuple[RankTable, list[str]]:
    """Merges the tables of all files, in order, and their notes. Raises RankTableError as `merge` does."""
    tables, notes, errors = list[tuple[str, RankTable]](), list[str](), list[str]()
    for path in paths:
        try:
            table, table_notes = read_rank_table(path, AllowedDeviations(any_ranks=True, uneven=True))
        except RankTableError as error:
            errors += error.lines
            continue
        tables.append((str(path), table))
        notes += [f"{path}: {note}" for note in table_notes]
        notes += _order_notes(str(path), table)
    if errors:
        raise RankTableError(dict.fromkeys(errors))
    return merge(tables, allowed), notes


def merge(tables: Sequence[tuple[str, RankTable]], allowed: AllowedDeviations) -> RankTable:
    """Merges the servers of all tables and numbers their ranks anew. tables: each with the name of its file.

    Raises RankTableError for a server or an address that is in two of them, for mixed versions, and for what
    cannot stand in one table.
    """
    errors = [*_versions(tables), *_shared(tables)]
    if errors:
        raise RankTableError(errors)
    merged = RankTable.numbered(
        tables[0][1].version, (server for _, table in tables for server in table.servers)
    )
    verify(merged, allowed)
    return merged


def _order_notes(name: str, table: RankTable) -> list[str]:
    """Notes tables whose ranks are not in the order of their entries: they become so."""
    ranks = [device.rank_id for server in table.servers for device in server.devices]
    if ranks == sorted(ranks):
        return []
    return [
        f"{name}: its ranks are not in the order of its entries; the merged table has the order of entries"
    ]


def _versions(tables: Sequence[tuple[str, RankTable]]) -> list[str]:
    first_name, first = tables[0]
    return [
        f"{name}: version {table.version}; {first_name} has {first.version}, and all must have the same"
        for name, table in tables[1:]
        if table.version != first.version
    ]


def _shared(tables: Sequence[tuple[str, RankTable]]) -> list[str]:
    """Lists what two files have in common; within one file it was found before."""
    homes: dict[object, str] = {}
    errors = []
    for name, table in tables:
        own: dict[object, str] = {}
        for server in table.servers:
            own[server.server_id] = f"server {shown(server.server_id)}"
            if server.server_id not in homes:  # else its addresses are known, too
                own |= _addresses(server)
        errors += [f"{name}: {item}: is in {homes[key]}, too" for key, item in own.items() if key in homes]
        homes |= {key: name for key in own if key not in homes}
    return errors


def _addresses(server: Server) -> dict[object, str]:
    addresses = [address for device in server.devices for address in same_addresses(device.device_ip)]
    return {address: f"device_ip {shown(str(address))}" for address in addresses}


def name_for_server(numbers: Sequence[int], server_id: str) -> str:
    """`hccl_4p_0123_10.0.0.1.json`: the logical numbers of the devices, one after another.

    A list too long for a name has its ends: `hccl_96p_0-95_10.0.0.1.json`.
    """
    ids = "".join(map(str, numbers))
    name = f"hccl_{len(numbers)}p_{ids}_{server_id}.json"
    if len(name) <= os.pathconf("/", "PC_NAME_MAX") - 20:  # a file being written has a longer name
        return name
    return f"hccl_{len(numbers)}p_{min(numbers)}-{max(numbers)}_{server_id}.json"


def name_for_servers(table: RankTable) -> str:
    """`hccl_2s_16p.json`."""
    return f"hccl_{len(table.servers)}s_{table.num_ranks}p.json"


def write_table(table: RankTable, path: Path, replace: bool = True) -> bool:
    """Writes the table whole; False when the file held the very same.

    With `replace` false a file that holds something else raises FileExistsError. Raises StorageError.
    """
    data = table.to_bytes()
    try:
        if path.is_file():
            if first_bytes(path, len(data) + 1) == data:
                return False
            if not replace:
                raise FileExistsError
    except PermissionError as error:
        raise StorageError.reading(path, error) from error
    write_whole(path, data)
    return True
