"""The rank table: which devices of which servers take part, with what rank; JSON (HCCL 1.0, 1.2) and text."""

import hashlib
import json
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, TypeVar

from mindbatch.io.amounts import ranges
from mindbatch.io.amounts import table as aligned
from mindbatch.launch.table_json import same_addresses, shown

PLAIN, SUPER_POD = "1.0", "1.2"
VERSIONS = (PLAIN, SUPER_POD)
"""1.0: servers that reach each other by their devices' network cards; 1.2: supernodes (Atlas A3)."""

COMPLETED = "completed"
RESERVED_NIC = "reserve"
"""`host_nic_ip` of a version 1.0 table, as MindFormers writes it."""

DEVICE_KEYS = (
    *("device_id", "super_device_id", "device_ip", "device_port"),
    *("backup_device_ip", "backup_device_port", "host_port", "rank_id"),
)
"""Keys that HCCL documents for a device, in the order of MindFormers' tools."""

UNKNOWN = -1
"""A number that an invalid table lacks; no table without errors has it."""


@dataclass(frozen=True)
class Device:
    """One device. A port is from 1 to 65535; ids and ranks begin at 0.

    device_id: the physical id on its server, N of /dev/davinciN. super_device_id: the id in its supernode.
    others: keys that HCCL does not document, as they were read.
    """

    device_id: int
    rank_id: int = UNKNOWN
    device_ip: str | None = None
    super_device_id: int | None = None
    device_port: int | None = None
    host_port: int | None = None
    backup_device_ip: str | None = None
    backup_device_port: int | None = None
    others: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the entry of `device`: every number a text, and no key for what is not known."""
        known = {key: getattr(self, key) for key in DEVICE_KEYS}
        return {key: str(value) for key, value in known.items() if value is not None} | dict(self.others)


@dataclass(frozen=True)
class Server:
    """One server. `super_pod_id` names its supernode, in version 1.2."""

    server_id: str
    devices: tuple[Device, ...]
    host_ip: str | None = None
    host_nic_ip: str | None = None
    super_pod_id: str | None = None
    others: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the entry of `server_list`, with its keys in MindFormers' order."""
        known = {
            "server_id": self.server_id,
            "host_ip": self.host_ip,
            "device": [device.to_json() for device in self.devices],
            "host_nic_ip": self.host_nic_ip,
        }
        return {name: value for name, value in known.items() if value is not None} | dict(self.others)


@dataclass(frozen=True)
class RankTable:
    """Servers of a rank table, in the order of the file."""

    version: str
    servers: tuple[Server, ...]

    @classmethod
    def numbered(cls, version: str, servers: Iterable[Server]) -> "RankTable":
        """Makes a table whose ranks count up from 0, through the devices of each server in order."""
        rank, numbered = 0, []
        for server in servers:
            devices = [replace(device, rank_id=rank + offset) for offset, device in enumerate(server.devices)]
            numbered.append(replace(server, devices=tuple(devices)))
            rank += len(devices)
        return cls(version, tuple(numbered))

    def of_ranks(self, ranks: range) -> "RankTable":
        """Extracts the table of neighbouring ranks, which are numbered from 0 there."""
        servers = []
        for server in self.servers:
            devices = tuple(
                replace(device, rank_id=device.rank_id - ranks.start)
                for device in server.devices
                if device.rank_id in ranks
            )
            servers += [replace(server, devices=devices)] if devices else []
        return RankTable(self.version, tuple(servers))

    @property
    def num_ranks(self) -> int:
        return sum(len(server.devices) for server in self.servers)

    def to_json(self) -> dict[str, Any]:
        """Returns the content of the file, with its keys in MindFormers' order."""
        pods: dict[str, list[dict[str, str]]] = {}
        for server in self.servers:
            if server.super_pod_id is not None:
                pods.setdefault(server.super_pod_id, []).append({"server_id": server.server_id})
        pod_list = [{"super_pod_id": pod, "server_list": members} for pod, members in pods.items()]
        return {
            "version": self.version,
            "server_count": str(len(self.servers)),
            "server_list": [server.to_json() for server in self.servers],
            **({"super_pod_list": pod_list} if pods else {}),
            "status": COMPLETED,
        }

    def to_bytes(self) -> bytes:
        """Encodes the file byte for byte as MindFormers' tools do: indented by 4, no newline at the end."""
        return json.dumps(self.to_json(), indent=4).encode()

    @property
    def digest(self) -> str:
        """SHA-256 of the table: HCCL compares checksums of what the ranks read, and takes only equal ones."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def counted(table: RankTable) -> str:
    """`8 ranks on 1 server`."""
    servers = len(table.servers)
    ranks = f"{table.num_ranks} rank{'s' * (table.num_ranks != 1)}"
    return f"{ranks} on {servers} server{'s' * (servers != 1)}"


def table_rows(table: RankTable) -> list[str]:
    rows = [("rank", "server", "device", "address", "SDID")]
    for server in table.servers:
        for device in server.devices:
            sdid = "-" if device.super_device_id is None else str(device.super_device_id)
            address = device.device_ip or "-"
            rows.append((str(device.rank_id), server.server_id, str(device.device_id), address, sdid))
    if all(row[-1] == "-" for row in rows[1:]):
        rows = [(*row[:-1], "") for row in rows]
    return aligned(rows)


Value = TypeVar("Value", bound=Hashable)
Located = Iterable[tuple[str, Value | None]]


def relation_errors(table: RankTable) -> list[str]:
    """Yields errors between values; numbers that are UNKNOWN were reported where they were read."""
    located = list(_devices(table))
    errors = [
        *_repeated(
            ((f"server_list[{n}].server_id", s.server_id or None) for n, s in enumerate(table.servers))
        ),
        *_repeated((f"{location}.rank_id", _known(device.rank_id)) for location, _, device in located),
    ]
    for key in ("device_ip", "backup_device_ip"):
        errors += _repeated(
            (f"{location}.{key}", address)
            for location, _, device in located
            for address in same_addresses(getattr(device, key))
        )
    for number, server in enumerate(table.servers):
        errors += _server_errors(f"server_list[{number}]", server)
    errors += _address_errors(table)
    return errors + [*_supernode_errors(table)]


def _devices(table: RankTable) -> Iterator[tuple[str, Server, Device]]:
    for number, server in enumerate(table.servers):
        for device_number, device in enumerate(server.devices):
            yield f"server_list[{number}].device[{device_number}]", server, device


def _known(number: int | None) -> int | None:
    return None if number == UNKNOWN else number


def _repeated(values: Located[Value]) -> Iterator[str]:
    first: dict[Value, str] = {}
    for location, value in values:
        if value is None:
            continue
        if value in first:
            yield f"{location}: {shown(str(value))} is that of {first[value]}, too"
        first.setdefault(value, location)


def _server_errors(location: str, server: Server) -> Iterator[str]:
    devices = [(f"{location}.device[{number}]", device) for number, device in enumerate(server.devices)]
    yield from _repeated((f"{at}.device_id", _known(device.device_id)) for at, device in devices)
    yield from _repeated((f"{at}.host_port", device.host_port) for at, device in devices)
    for at, device in devices:
        if {*same_addresses(device.device_ip)} & {*same_addresses(device.backup_device_ip)}:
            yield f"{at}.backup_device_ip: is its own device_ip; a backup is the other die's"


def size_errors(table: RankTable) -> Iterator[str]:
    """Yields the servers with fewer devices than the largest: most likely one is missing."""
    largest = max(table.servers, key=lambda server: len(server.devices), default=None)
    for number, server in enumerate(table.servers):
        if largest and 0 < len(server.devices) < len(largest.devices):
            yield (
                f"server_list[{number}].device: {len(server.devices)} devices, and {len(largest.devices)} on "
                f"server {shown(largest.server_id)}"
            )


def rank_errors(table: RankTable) -> Iterator[str]:
    ranks = {device.rank_id for _, _, device in _devices(table)} - {UNKNOWN}
    complete = {*range(table.num_ranks)}
    allowed = f"the {table.num_ranks} devices must have the ranks {_spans(complete)}"
    if missing := complete - ranks:
        yield f"rank_id: {_spans(missing)} missing; {allowed}"
    if beyond := ranks - complete:
        yield f"rank_id: {_spans(beyond)} too large; {allowed}"
    yield from _interleaved(table)


def _spans(numbers: Iterable[int]) -> str:
    """Numbers in short: `0 to 3, 5`."""
    return ranges(sorted(numbers), to=" to ")


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


def _address_errors(table: RankTable) -> Iterator[str]:
    """Several servers, or several supernodes, reach each other by the addresses of their devices."""
    apart = {server.super_pod_id if table.version == SUPER_POD else None for server in table.servers}
    if len(table.servers) < 2 or (table.version == SUPER_POD and len(apart) < 2 and None not in apart):
        return
    for location, _, device in _devices(table):
        if device.device_ip is None:
            yield f"{location}.device_ip: is missing; devices of several servers need one"


def _supernode_errors(table: RankTable) -> Iterator[str]:
    if table.version == PLAIN or all(server.super_pod_id is None for server in table.servers):
        return
    for number, server in enumerate(table.servers):
        if server.super_pod_id is None:
            yield f"super_pod_list: server_list[{number}] ({shown(server.server_id)}) is in none"
    for location, _, device in _devices(table):
        if device.super_device_id is None:
            yield f"{location}.super_device_id: is missing; the devices of a supernode need one"
    for pod in dict.fromkeys(server.super_pod_id for server in table.servers):
        yield from _repeated(
            (f"{location}.super_device_id", device.super_device_id)
            for location, server, device in _devices(table)
            if server.super_pod_id == pod is not None
        )
    runs = [pod for pod, _ in groupby(server.super_pod_id for server in table.servers)]
    for pod in sorted({pod for pod in runs if pod is not None and runs.count(pod) > 1}):
        yield f"server_list: the servers of supernode {shown(pod)} must follow one another"
