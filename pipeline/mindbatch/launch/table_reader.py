"""Rank tables read from JSON: every error in their keys and values is found, and then those between them.

The formats are those of HCCL's user guide: "Rank Table Configuration" for Atlas A2 and A3
(hiascend.com/document/detail/en/CANNCommunityEdition/900/API/hcclug/hcclug_000066.html).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mindbatch.io.errors import EXIT_FAILED, MindBatchError
from mindbatch.launch.rank_table import (
    COMPLETED,
    DEVICE_KEYS,
    PLAIN,
    RESERVED_NIC,
    SUPER_POD,
    UNKNOWN,
    VERSIONS,
    Device,
    RankTable,
    Server,
    rank_errors,
    relation_errors,
    size_errors,
)
from mindbatch.launch.table_json import (
    LARGEST_ID,
    Fields,
    Findings,
    parse_json,
    read_json,
    shown,
)

_TOP_KEYS = ("version", "server_count", "server_list", "super_pod_list", "status")
_SERVER_KEYS = ("server_id", "host_ip", "host_nic_ip", "device")
# MindSpore 1.0 names the board and the network cards of a table, and counts devices and servers of a group.
_BOARD_KEYS = ("board_id", "chip_info", "deploy_mode")
_NIC_KEYS = ("para_plane_nic_location", "para_plane_nic_name", "para_plane_nic_num")
_GROUPS_KEYS = ("status", "group_count", "group_list", *_BOARD_KEYS, *_NIC_KEYS)
_GROUP_KEYS = (
    *("group_name", "device_count", "instance_count", "instance_list"),
    *("device_num", "server_num", "server_list"),
)
_INSTANCE_KEYS = ("pod_name", "server_id", "devices", "rank_id")
_INSTANCE_DEVICE_KEYS = ("device_id", "device_ip")
_SERVER_PLACE = re.compile(r"\bserver_list\[(\d+)\](?:(\.device)\b(?:\[(\d+)\](\.rank_id\b)?)?)?")
LARGEST_DEVICE_ID = 4095
MOST_SERVERS = 1 << 20
LONGEST_SERVER_ID = 64


class RankTableError(MindBatchError):
    """A rank table that cannot be used: a line for each error."""

    exit_code = EXIT_FAILED


@dataclass(frozen=True)
class Leave:
    """Relaxed checks. any_ranks: ranks need not be 0, 1, 2 ...; uneven: servers may differ in size."""

    any_ranks: bool = False
    uneven: bool = False


STRICT = Leave()


def read_rank_table(path: Path, leave: Leave = STRICT) -> tuple[RankTable, list[str]]:
    """The table in the file, and notes on it. Raises RankTableError with every error."""
    try:
        document = read_json(path)
    except ValueError as error:
        raise RankTableError(f"{path}: {error}") from error
    table, findings = examine(document, leave)
    if findings.errors:
        raise RankTableError(f"{path}: {problem}" for problem in findings.errors)
    return table, findings.notes


def verify(table: RankTable, leave: Leave = STRICT) -> None:
    """Puts a table of our own to the test that a file has to pass. Raises RankTableError."""
    _, findings = examine(parse_json(table.to_bytes()), leave)
    if findings.errors:
        raise RankTableError(findings.errors)


def examine(document: Any, leave: Leave = STRICT) -> tuple[RankTable, Findings]:
    """The table in parsed JSON, with what is wrong; only a table without errors is to be used."""
    findings = Findings()
    if not isinstance(document, dict):
        findings.errors.append(f"holds {shown(document)}; must be an object with server_list")
        return RankTable(PLAIN, ()), findings
    top = Fields(document, "", findings)
    if "group_list" in document and "server_list" not in document:
        return _table_of_groups(top, leave)
    version = _version(top)
    pods = dict(_super_pods(top)) if version != PLAIN else {}
    servers = tuple(_server(fields, pods) for fields in top.objects("server_list"))
    table = RankTable(version, servers)
    _examine_top(top, len(servers), version)
    findings.errors += relation_errors(table)
    findings.errors += [] if leave.any_ranks else rank_errors(table)
    (findings.notes if leave.uneven else findings.errors).extend(size_errors(table))
    _examine_super_pods(top, table, pods)
    return table, findings


def _version(top: Fields) -> str:
    version = top.text("version", required=True)
    if version is not None and version not in VERSIONS:
        top.error("version", f"{shown(version)}; must be one of {', '.join(map(shown, VERSIONS))}")
    if version in VERSIONS:
        return version
    return SUPER_POD if "super_pod_list" in top.content else PLAIN


def _examine_top(top: Fields, num_servers: int, version: str) -> None:
    _examine_status(top)
    entries = top.content.get("server_list")
    num_servers = len(entries) if isinstance(entries, list) else num_servers
    count = top.number("server_count", 1, MOST_SERVERS, required=version == PLAIN)
    if count is not None and num_servers and count != num_servers:
        top.error("server_count", f"{count}; server_list has {num_servers}")
    top.others(_TOP_KEYS)


def _server(fields: Fields, pods: dict[str, str]) -> Server:
    server_id = _server_id_of(fields)
    return Server(
        server_id=server_id,
        devices=tuple(_device(device) for device in fields.objects("device")),
        host_ip=fields.addresses("host_ip"),
        host_nic_ip=fields.text("host_nic_ip"),
        super_pod_id=pods.get(server_id),
        others=fields.others(_SERVER_KEYS),
    )


def _device(fields: Fields) -> Device:
    device_id = _device_id_of(fields)
    rank_id = fields.number("rank_id", 0, LARGEST_ID, required=True)
    return Device(
        device_id=device_id,
        rank_id=UNKNOWN if rank_id is None else rank_id,
        device_ip=fields.addresses("device_ip"),
        super_device_id=fields.number("super_device_id", 0, LARGEST_ID),
        device_port=fields.port("device_port"),
        host_port=fields.port("host_port"),
        backup_device_ip=fields.addresses("backup_device_ip"),
        backup_device_port=fields.port("backup_device_port"),
        others=fields.others(DEVICE_KEYS),
    )


def _examine_status(top: Fields) -> None:
    """Checks that the writer of the table has finished it."""
    status = top.text("status", required=True)
    if status not in (None, COMPLETED):
        top.error("status", f"{shown(status)}; must be {shown(COMPLETED)}")


def _server_id_of(fields: Fields) -> str:
    """The name of a server; empty where it is missing."""
    server_id = fields.text("server_id", required=True)
    if server_id is not None and (error := server_id_error(server_id)):
        fields.error("server_id", f"{shown(server_id)}: {error}")
    return server_id or ""


def server_id_error(server_id: str) -> str | None:
    """Explains why `server_id` cannot name a server; None if it can."""
    if not 0 < len(server_id) <= LONGEST_SERVER_ID:
        return f"must have 1 to {LONGEST_SERVER_ID} characters"
    if not server_id.isprintable() or "/" in server_id or " " in server_id:
        return "must have no spaces, slashes or control characters"
    return None


def _device_id_of(fields: Fields) -> int:
    """The physical id of a device; UNKNOWN where it is missing."""
    device_id = fields.number("device_id", 0, LARGEST_DEVICE_ID, required=True)
    return UNKNOWN if device_id is None else device_id


def _super_pods(top: Fields) -> Iterator[tuple[str, str]]:
    """(server_id, super_pod_id) for each server of the list; errors of the list itself are noted."""
    pods: dict[str, str] = {}
    homes: dict[str, str] = {}
    for fields in top.objects("super_pod_list", required=False):
        pod = fields.text("super_pod_id", required=True)
        if pod is not None and pod in pods:
            fields.error("super_pod_id", f"{shown(pod)}: is that of {pods[pod]}, too")
        if pod == "":
            fields.error("super_pod_id", "must not be empty")
        pods.setdefault(pod or "", fields.place)
        for member in fields.objects("server_list"):
            server = member.text("server_id", required=True)
            if server in homes:
                top.findings.errors.append(f"{member.place}: {shown(server)} is in {homes[server]}, too")
            elif server is not None:
                homes[server] = fields.place
                yield server, pod or ""
            member.others(("server_id",))
        fields.others(("super_pod_id", "server_list"))


def _examine_super_pods(top: Fields, table: RankTable, pods: dict[str, str]) -> None:
    if table.version == PLAIN:
        error = f"not in version {PLAIN}; supernodes need version {SUPER_POD}"
        if "super_pod_list" in top.content:
            top.error("super_pod_list", error)
        if any(device.super_device_id is not None for server in table.servers for device in server.devices):
            top.error("super_device_id", error)
    elif "super_pod_list" not in top.content:
        top.note("super_pod_list", "is missing; HCCL will take the servers for single ones, not a supernode")
    names = {server.server_id for server in table.servers}
    for name in pods:
        if name not in names:
            top.error("super_pod_list", f"{shown(name)}: no server of server_list")


@dataclass(frozen=True)
class _Instance:
    """An entry of `instance_list`: devices of a server. rank: of its one device, in MindSpore 1.0's form."""

    place: str
    server_id: str
    devices: tuple[Device, ...]
    rank: int | None


def _table_of_groups(top: Fields, leave: Leave) -> tuple[RankTable, Findings]:
    """A table with `group_list` in version 1.0.

    ModelArts (`jobstart_hccl.json`) has an instance a server, whose devices are ranks in the order of groups,
    instances and devices; MindSpore 1.0 has an instance a device, with its rank.
    """
    findings = top.findings
    _examine_status(top)
    groups = [*top.objects("group_list")]
    instances = [instance for group in groups for instance in _group_instances(group)]
    _examine_count(top, "group_count", len(groups))
    top.others(_GROUPS_KEYS)
    has_ranks = any(instance.rank is not None for instance in instances)
    form = "MindSpore 1.0's form" if has_ranks else "ModelArts' form, whose devices are ranks in their order"
    top.note("group_list", f"{form}; HCCL reads version 1.0")
    by_server = _by_server(instances) if has_ranks else [[instance] for instance in instances]
    servers = [*map(_server_of, by_server)]
    table = RankTable(PLAIN, tuple(servers)) if has_ranks else RankTable.numbered(PLAIN, servers)
    errors = relation_errors(table)
    errors += rank_errors(table) if has_ranks and not leave.any_ranks else []
    places = [_device_places(members) for members in by_server]
    findings.errors += [_placed(error, places) for error in errors]
    sizes = [_placed(error, places) for error in size_errors(table)]
    (findings.notes if leave.uneven else findings.errors).extend(sizes)
    return table, findings


def _server_of(instances: Sequence[_Instance]) -> Server:
    devices = tuple(device for instance in instances for device in instance.devices)
    return Server(instances[0].server_id, devices, host_nic_ip=RESERVED_NIC)


def _by_server(instances: Sequence[_Instance]) -> list[list[_Instance]]:
    """Gathers the instances of each server, in the order of their ranks."""
    servers: dict[str, list[_Instance]] = {}
    for instance in sorted(instances, key=lambda instance: instance.rank or 0):
        servers.setdefault(instance.server_id, []).append(instance)
    return [*servers.values()]


def _device_places(instances: Sequence[_Instance]) -> list[str]:
    """The place in the document of each device of a server, and before them that of the server."""
    devices = [
        f"{instance.place}.devices[{n}]" for instance in instances for n in range(len(instance.devices))
    ]
    return [instances[0].place, *devices]


def _placed(error: str, places: Sequence[Sequence[str]]) -> str:
    """An error of a table in version 1.0, told with the places of the document that it was read from."""

    def place(match: re.Match[str]) -> str:
        server, devices, device, rank = places[int(match[1])], *match.groups()[1:]
        if device is None:
            return f"{server[0]}.devices" if devices else server[0]
        return f"{server[1 + int(device)].rpartition('.')[0]}.rank_id" if rank else server[1 + int(device)]

    return _SERVER_PLACE.sub(place, error)


def _group_instances(group: Fields) -> Iterator[_Instance]:
    instances = [_instance(fields) for fields in group.objects("instance_list")]
    num_devices = sum(len(instance.devices) for instance in instances)
    _examine_count(group, "instance_count", len(instances))
    for key in ("device_count", "device_num"):
        _examine_count(group, key, num_devices)
    _examine_count(group, "server_num", len({instance.server_id for instance in instances}))
    group.others(_GROUP_KEYS)
    yield from instances


def _instance(fields: Fields) -> _Instance:
    devices = tuple(_instance_device(entry) for entry in fields.objects("devices"))
    rank = fields.number("rank_id", 0, LARGEST_ID)
    if rank is not None and len(devices) > 1:
        fields.error(
            "rank_id", f"{rank}; there are {len(devices)} devices, and an instance with a rank has one"
        )
    if rank is not None:
        devices = tuple(replace(device, rank_id=rank) for device in devices)
    fields.others(_INSTANCE_KEYS)
    return _Instance(fields.place, _server_id_of(fields), devices, rank)


def _instance_device(fields: Fields) -> Device:
    fields.others(_INSTANCE_DEVICE_KEYS)
    return Device(_device_id_of(fields), device_ip=fields.addresses("device_ip"))


def _examine_count(fields: Fields, key: str, counted: int) -> None:
    count = fields.number(key, 1, MOST_SERVERS)
    if count is not None and counted and count != counted:
        fields.error(key, f"{count}; there are {counted}")
