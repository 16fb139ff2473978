"""Rank tables read from JSON: every error in their keys and values is found, and then those between them.

The formats are those of HCCL's user guide: "Rank Table Configuration" for Atlas A2 and A3
(hiascend.com/document/detail/en/CANNCommunityEdition/900/API/hcclug/hcclug_000066.html).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindbatch.io.errors import EXIT_FAILED, MindBatchError
from mindbatch.launch.rank_table import (
    DEVICE_KEYS,
    PLAIN,
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
from mindbatch.launch.table_fields import MAX_SERVERS, device_id_of, examine_status, server_id_of
from mindbatch.launch.table_groups import GroupTable
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


class RankTableError(MindBatchError):
    """A rank table that cannot be used: a line for each error."""

    exit_code = EXIT_FAILED


@dataclass(frozen=True)
class AllowedDeviations:
    """Relaxed checks. any_ranks: ranks need not be 0, 1, 2 ...; uneven: servers may differ in size."""

    any_ranks: bool = False
    uneven: bool = False


STRICT = AllowedDeviations()


def read_rank_table(path: Path, allowed: AllowedDeviations = STRICT) -> tuple[RankTable, list[str]]:
    """Reads the table in a file, and notes on it. Raises RankTableError with every error."""
    try:
        document = read_json(path)
    except ValueError as error:
        raise RankTableError(f"{path}: {error}") from error
    table, findings = examine(document, allowed)
    if findings.errors:
        raise RankTableError(f"{path}: {problem}" for problem in findings.errors)
    return table, findings.notes


def verify(table: RankTable, allowed: AllowedDeviations = STRICT) -> None:
    """Puts a table of our own to the test that a file has to pass. Raises RankTableError."""
    _, findings = examine(parse_json(table.to_bytes()), allowed)
    if findings.errors:
        raise RankTableError(findings.errors)


def examine(document: Any, allowed: AllowedDeviations = STRICT) -> tuple[RankTable, Findings]:
    """Reads the table in parsed JSON and finds its errors; only a table without errors is to be used."""
    findings = Findings()
    if not isinstance(document, dict):
        findings.errors.append(f"holds {shown(document)}; must be an object with server_list")
        return RankTable(PLAIN, ()), findings
    top = Fields(document, "", findings)
    if "group_list" in document and "server_list" not in document:
        groups = GroupTable.read(top)
        _examine_relations(groups.table, findings, allowed, groups.located)
        return groups.table, findings
    version = _version(top)
    pods = dict(_super_pods(top)) if version != PLAIN else {}
    servers = tuple(_server(fields, pods) for fields in top.objects("server_list"))
    table = RankTable(version, servers)
    _examine_top(top, len(servers), version)
    _examine_relations(table, findings, allowed)
    _examine_super_pods(top, table, pods)
    return table, findings


def _examine_relations(
    table: RankTable, findings: Findings, allowed: AllowedDeviations, located: Callable[[str], str] = str
) -> None:
    """Checks values against each other. located: an error of the table, with its location in the document."""
    errors = [*relation_errors(table), *(() if allowed.any_ranks else rank_errors(table))]
    findings.errors += map(located, errors)
    (findings.notes if allowed.uneven else findings.errors).extend(map(located, size_errors(table)))


def _version(top: Fields) -> str:
    version = top.text("version", required=True)
    if version is not None and version not in VERSIONS:
        top.error("version", f"{shown(version)}; must be one of {', '.join(map(shown, VERSIONS))}")
    if version in VERSIONS:
        return version
    return SUPER_POD if "super_pod_list" in top.content else PLAIN


def _examine_top(top: Fields, num_servers: int, version: str) -> None:
    examine_status(top)
    entries = top.content.get("server_list")
    num_servers = len(entries) if isinstance(entries, list) else num_servers
    count = top.number("server_count", 1, MAX_SERVERS, required=version == PLAIN)
    if count is not None and num_servers and count != num_servers:
        top.error("server_count", f"{count}; server_list has {num_servers}")
    top.others(_TOP_KEYS)


def _server(fields: Fields, pods: dict[str, str]) -> Server:
    server_id = server_id_of(fields)
    return Server(
        server_id=server_id,
        devices=tuple(_device(device) for device in fields.objects("device")),
        host_ip=fields.addresses("host_ip"),
        host_nic_ip=fields.text("host_nic_ip"),
        super_pod_id=pods.get(server_id),
        others=fields.others(_SERVER_KEYS),
    )


def _device(fields: Fields) -> Device:
    device_id = device_id_of(fields)
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
        pods.setdefault(pod or "", fields.location)
        for member in fields.objects("server_list"):
            server = member.text("server_id", required=True)
            if server in homes:
                top.findings.errors.append(f"{member.location}: {shown(server)} is in {homes[server]}, too")
            elif server is not None:
                homes[server] = fields.location
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
