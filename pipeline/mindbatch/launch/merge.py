"""Tables of several servers put together: the order of the tables is the order of the ranks."""

from collections.abc import Sequence
from pathlib import Path

from mindbatch.launch.findings import same_addresses
from mindbatch.launch.rank_table import RankTable, Server
from mindbatch.launch.table_json import shown
from mindbatch.launch.table_reader import Leave, RankTableError, read_rank_table, verify


def merge_files(paths: Sequence[Path], leave: Leave) -> tuple[RankTable, list[str]]:
    """The table of all files, in their order, and notes on them. Raises RankTableError as `merge` does."""
    tables, notes, faults = list[tuple[str, RankTable]](), list[str](), list[str]()
    for path in paths:
        try:
            table, found = read_rank_table(path, Leave(any_ranks=True, uneven=True))
        except RankTableError as error:
            faults += error.faults
            continue
        tables.append((str(path), table))
        notes += [f"{path}: {note}" for note in found]
        notes += _order_notes(str(path), table)
    if faults:
        raise RankTableError(dict.fromkeys(faults))
    return merge(tables, leave), notes


def merge(tables: Sequence[tuple[str, RankTable]], leave: Leave) -> RankTable:
    """One table of all servers, ranks numbered anew. `tables`: each with the name of its file.

    Raises RankTableError for a server or an address that is in two of them, for mixed versions, and for what
    cannot stand in one table.
    """
    faults = [*_versions(tables), *_shared(tables)]
    if faults:
        raise RankTableError(faults)
    merged = RankTable.numbered(tables[0][1].version, (each for _, table in tables for each in table.servers))
    verify(merged, leave)
    return merged


def _order_notes(name: str, table: RankTable) -> list[str]:
    """A line for a table whose ranks are not in the order of its entries: they become so."""
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
    """What two files have in common; within one file it was found before."""
    homes: dict[object, str] = {}
    faults = []
    for name, table in tables:
        own: dict[object, str] = {}
        for server in table.servers:
            own[server.server_id] = f"server {shown(server.server_id)}"
            if server.server_id not in homes:  # of one that is there already the addresses are, too
                own |= _addresses(server)
        faults += [f"{name}: {what}: is in {homes[key]}, too" for key, what in own.items() if key in homes]
        homes |= {key: name for key in own if key not in homes}
    return faults


def _addresses(server: Server) -> dict[object, str]:
    found = [address for device in server.devices for address in same_addresses(device.device_ip)]
    return {address: f"device_ip {shown(str(address))}" for address in found}
