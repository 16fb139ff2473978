"""ModelArts' rank tables (`jobstart_hccl.json`): groups of instances, whose devices have no ranks."""

import re
from collections.abc import Iterator

from mindbatch.launch.rank_table import PLAIN, RESERVED_NIC, Device, RankTable, Server
from mindbatch.launch.table_entries import MOST_SERVERS, device_id_of, examine_status, server_id_of
from mindbatch.launch.table_json import Fields

_TOP_KEYS = ("status", "group_count", "group_list")
_GROUP_KEYS = ("group_name", "device_count", "instance_count", "instance_list")
_INSTANCE_KEYS = ("pod_name", "server_id", "devices")
_DEVICE_KEYS = ("device_id", "device_ip")
_PLACE = re.compile(r"\bserver_list\[(\d+)\](\.device\b)?")


def table_of_groups(top: Fields) -> tuple[RankTable, list[str]]:
    """The table in version 1.0, its ranks in the order of groups, instances and devices; faults are noted.

    Beside it the place of each server in the document.
    """
    examine_status(top)
    groups = [*top.objects("group_list")]
    servers = [pair for group in groups for pair in _servers(group)]
    _examine_count(top, "group_count", len(groups))
    top.others(_TOP_KEYS)
    top.note("group_list", "ModelArts' form, whose devices are ranks in their order; HCCL reads version 1.0")
    table = RankTable.numbered(PLAIN, [server for server, _ in servers])
    return table, [place for _, place in servers]


def placed(fault: str, places: list[str]) -> str:
    """A fault of a table in version 1.0, told with the places of the document that it was read from."""
    return _PLACE.sub(lambda match: places[int(match[1])] + (".devices" if match[2] else ""), fault)


def _servers(group: Fields) -> Iterator[tuple[Server, str]]:
    servers = [(_server(instance), instance.place) for instance in group.objects("instance_list")]
    _examine_count(group, "instance_count", len(servers))
    _examine_count(group, "device_count", sum(len(server.devices) for server, _ in servers))
    group.others(_GROUP_KEYS)
    yield from servers


def _server(instance: Fields) -> Server:
    devices = tuple(_device(entry) for entry in instance.objects("devices"))
    instance.others(_INSTANCE_KEYS)
    return Server(server_id_of(instance), devices, host_nic_ip=RESERVED_NIC)


def _device(fields: Fields) -> Device:
    fields.others(_DEVICE_KEYS)
    return Device(device_id_of(fields), device_ip=fields.addresses("device_ip"))


def _examine_count(fields: Fields, key: str, counted: int) -> None:
    count = fields.number(key, 1, MOST_SERVERS)
    if count is not None and counted and count != counted:
        fields.fault(key, f"{count}; there are {counted}")
