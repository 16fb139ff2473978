"""Rank tables with `group_list`: ModelArts' form, and that of MindSpore 1.0."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mindbatch.launch.rank_table import PLAIN, RESERVED_NIC, Device, RankTable, Server
from mindbatch.launch.table_fields import device_id_of, examine_count, examine_status, server_id_of
from mindbatch.launch.table_json import LARGEST_ID, Fields

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
_SERVER_LOCATION = re.compile(r"\bserver_list\[(\d+)\](?:(\.device)\b(?:\[(\d+)\](\.rank_id\b)?)?)?")


@dataclass(frozen=True)
class _Instance:
    """An entry of `instance_list`: devices of a server. rank: of its one device, in MindSpore 1.0's form."""

    location: str
    server_id: str
    devices: tuple[Device, ...]
    rank: int | None


@dataclass(frozen=True)
class GroupTable:
    """A table that was read from one with `group_list`.

    locations: for each server its own in the document, and those of its devices.
    """

    table: RankTable
    locations: Sequence[Sequence[str]]

    @classmethod
    def read(cls, top: Fields) -> "GroupTable":
        """Reads the table in version 1.0; errors in values are noted.

        ModelArts (`jobstart_hccl.json`) has an instance a server, whose devices are ranks in the order of
        groups, instances and devices; MindSpore 1.0 has an instance a device, with its rank.
        """
        examine_status(top)
        groups = [*top.objects("group_list")]
        instances = [instance for group in groups for instance in _group_instances(group)]
        examine_count(top, "group_count", len(groups))
        top.others(_GROUPS_KEYS)
        has_ranks = any(instance.rank is not None for instance in instances)
        form = (
            "MindSpore 1.0's form" if has_ranks else "ModelArts' form, whose devices are ranks in their order"
        )
        top.note("group_list", f"{form}; HCCL reads version 1.0")
        by_server = _by_server(instances) if has_ranks else [[instance] for instance in instances]
        servers = [*map(_server_of, by_server)]
        table = RankTable(PLAIN, tuple(servers)) if has_ranks else RankTable.numbered(PLAIN, servers)
        return cls(table, [_locations(members) for members in by_server])

    def located(self, error: str) -> str:
        """Adds to an error of the table the locations in the document that it was read from."""

        def location(match: re.Match[str]) -> str:
            server, devices, device, rank = self.locations[int(match[1])], *match.groups()[1:]
            if device is None:
                return f"{server[0]}.devices" if devices else server[0]
            own = server[1 + int(device)]
            return f"{own.rpartition('.')[0]}.rank_id" if rank else own

        return _SERVER_LOCATION.sub(location, error)


def _server_of(instances: Sequence[_Instance]) -> Server:
    devices = tuple(device for instance in instances for device in instance.devices)
    return Server(instances[0].server_id, devices, host_nic_ip=RESERVED_NIC)


def _by_server(instances: Sequence[_Instance]) -> list[list[_Instance]]:
    """Gathers the instances of each server, in the order of their ranks."""
    servers: dict[str, list[_Instance]] = {}
    for instance in sorted(instances, key=lambda instance: instance.rank or 0):
        servers.setdefault(instance.server_id, []).append(instance)
    return [*servers.values()]


def _locations(instances: Sequence[_Instance]) -> list[str]:
    """Lists the locations in the document of a server and of each of its devices."""
    devices = [
        f"{instance.location}.devices[{n}]" for instance in instances for n in range(len(instance.devices))
    ]
    return [instances[0].location, *devices]


def _group_instances(group: Fields) -> Iterator[_Instance]:
    instances = [_instance(fields) for fields in group.objects("instance_list")]
    num_devices = sum(len(instance.devices) for instance in instances)
    examine_count(group, "instance_count", len(instances))
    for key in ("device_count", "device_num"):
        examine_count(group, key, num_devices)
    examine_count(group, "server_num", len({instance.server_id for instance in instances}))
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
    return _Instance(fields.location, server_id_of(fields), devices, rank)


def _instance_device(fields: Fields) -> Device:
    fields.others(_INSTANCE_DEVICE_KEYS)
    return Device(device_id_of(fields), device_ip=fields.addresses("device_ip"))
