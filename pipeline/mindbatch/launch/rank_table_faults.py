"""Faults between the entries of a rank table: what appears twice, is missing, cannot go together."""

from collections.abc import Hashable, Iterable, Iterator
from itertools import groupby
from typing import TypeVar

from mindbatch.launch.rank_table import PLAIN, SUPER_POD, UNKNOWN, Device, RankTable, Server
from mindbatch.launch.table_json import same_addresses, shown, spans

Value = TypeVar("Value", bound=Hashable)
Placed = Iterable[tuple[str, Value | None]]


def relation_faults(table: RankTable) -> list[str]:
    """A line for each fault; numbers that are UNKNOWN were reported where they were read."""
    places = list(_devices(table))
    faults = [
        *_repeated(
            ((f"server_list[{n}].server_id", s.server_id or None) for n, s in enumerate(table.servers))
        ),
        *_repeated((f"{place}.rank_id", _known(device.rank_id)) for place, _, device in places),
    ]
    for key in ("device_ip", "backup_device_ip"):
        faults += _repeated(
            (f"{place}.{key}", address)
            for place, _, device in places
            for address in same_addresses(getattr(device, key))
        )
    for number, server in enumerate(table.servers):
        faults += _server_faults(f"server_list[{number}]", server)
    faults += _address_faults(table)
    return faults + [*_supernode_faults(table)]


def _devices(table: RankTable) -> Iterator[tuple[str, Server, Device]]:
    for number, server in enumerate(table.servers):
        for place, device in enumerate(server.devices):
            yield f"server_list[{number}].device[{place}]", server, device


def _known(number: int | None) -> int | None:
    return None if number == UNKNOWN else number


def _repeated(placed: Placed[Value]) -> Iterator[str]:
    """A line for each value that came before."""
    first: dict[Value, str] = {}
    for place, value in placed:
        if value is None:
            continue
        if value in first:
            yield f"{place}: {shown(str(value))} is that of {first[value]}, too"
        first.setdefault(value, place)


def _server_faults(place: str, server: Server) -> Iterator[str]:
    devices = [(f"{place}.device[{number}]", device) for number, device in enumerate(server.devices)]
    yield from _repeated((f"{at}.device_id", _known(device.device_id)) for at, device in devices)
    yield from _repeated((f"{at}.host_port", device.host_port) for at, device in devices)
    for at, device in devices:
        if {*same_addresses(device.device_ip)} & {*same_addresses(device.backup_device_ip)}:
            yield f"{at}.backup_device_ip: is its own device_ip; a backup is the other die's"


def size_faults(table: RankTable) -> Iterator[str]:
    """Servers with fewer devices than the one with the most: most likely one is missing."""
    most = max(table.servers, key=lambda server: len(server.devices), default=None)
    for number, server in enumerate(table.servers):
        if most and 0 < len(server.devices) < len(most.devices):
            yield (
                f"server_list[{number}].device: {len(server.devices)} devices, and {len(most.devices)} on "
                f"server {shown(most.server_id)}"
            )


def rank_faults(table: RankTable) -> Iterator[str]:
    """Gaps in the ranks, and servers whose ranks cross."""
    ranks = {device.rank_id for _, _, device in _devices(table)} - {UNKNOWN}
    complete = {*range(table.num_ranks)}
    allowed = f"the {table.num_ranks} devices must have the ranks {spans(sorted(complete))}"
    if missing := sorted(complete - ranks):
        yield f"rank_id: {spans(missing)} missing; {allowed}"
    if beyond := sorted(ranks - complete):
        yield f"rank_id: {spans(beyond)} too large; {allowed}"
    yield from _interleaved(table)


def _interleaved(table: RankTable) -> Iterator[str]:
    """HCCL does not take those."""
    extents = []
    for server in table.servers:
        ranks = [device.rank_id for device in server.devices if device.rank_id != UNKNOWN]
        extents += [(min(ranks), max(ranks), server.server_id)] if ranks else []
    extents.sort()
    for (low, high, name), (next_low, next_high, next_name) in zip(extents, extents[1:], strict=False):
        if next_low <= high:
            yield (
                f"rank_id: servers {shown(name)} ({low} to {high}) and {shown(next_name)} ({next_low} to "
                f"{next_high}) cross; the ranks of a server must follow one another"
            )


def _address_faults(table: RankTable) -> Iterator[str]:
    """Several servers, or several supernodes, reach each other by the addresses of their devices."""
    apart = {server.super_pod_id if table.version == SUPER_POD else None for server in table.servers}
    if len(table.servers) < 2 or (table.version == SUPER_POD and len(apart) < 2 and None not in apart):
        return
    for place, _, device in _devices(table):
        if device.device_ip is None:
            yield f"{place}.device_ip: is missing; devices of several servers need one"


def _supernode_faults(table: RankTable) -> Iterator[str]:
    if table.version == PLAIN or all(server.super_pod_id is None for server in table.servers):
        return
    for number, server in enumerate(table.servers):
        if server.super_pod_id is None:
            yield f"super_pod_list: server_list[{number}] ({shown(server.server_id)}) is in none"
    for place, _, device in _devices(table):
        if device.super_device_id is None:
            yield f"{place}.super_device_id: is missing; the devices of a supernode need one"
    for pod in dict.fromkeys(server.super_pod_id for server in table.servers):
        yield from _repeated(
            (f"{place}.super_device_id", device.super_device_id)
            for place, server, device in _devices(table)
            if server.super_pod_id == pod is not None
        )
    runs = [pod for pod, _ in groupby(server.super_pod_id for server in table.servers)]
    for pod in sorted({pod for pod in runs if pod is not None and runs.count(pod) > 1}):
        yield f"server_list: the servers of supernode {shown(pod)} must follow one another"
