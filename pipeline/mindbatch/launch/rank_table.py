"""The rank table: which devices of which servers take part, with what rank; JSON (HCCL 1.0, 1.2) and text."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

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
"""A number that a faulty table lacks; no table without faults has it."""


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
        """The entry of `device`: every number a text, and no key for what is not known."""
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
        """The entry of `server_list`, with its keys in MindFormers' order."""
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
        """A table whose ranks count up from 0, through the devices of each server in the order given."""
        rank, numbered = 0, []
        for server in servers:
            devices = [replace(device, rank_id=rank + place) for place, device in enumerate(server.devices)]
            numbered.append(replace(server, devices=tuple(devices)))
            rank += len(devices)
        return cls(version, tuple(numbered))

    def of_ranks(self, ranks: range) -> "RankTable":
        """The table of neighbouring ranks alone, which are numbered from 0 there."""
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
        """Devices of all servers."""
        return sum(len(server.devices) for server in self.servers)

    def to_json(self) -> dict[str, Any]:
        """The content of the file, with its keys in MindFormers' order."""
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
        """The file, byte for byte as MindFormers' tools lay it out: indented by 4, no newline at the end."""
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
    """A line for each rank, in columns."""
    rows = [("rank", "server", "device", "address", "SDID")]
    for server in table.servers:
        for device in server.devices:
            sdid = "-" if device.super_device_id is None else str(device.super_device_id)
            address = device.device_ip or "-"
            rows.append((str(device.rank_id), server.server_id, str(device.device_id), address, sdid))
    if all(row[-1] == "-" for row in rows[1:]):
        rows = [(*row[:-1], "") for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
