"""The table that `mindbatch rank-table` writes: of this server, or of servers that were given."""

from pathlib import Path

from mindbatch.io.errors import ConfigError
from mindbatch.launch.given_servers import GivenServers, parse_devices, parse_list, physical_devices
from mindbatch.launch.hccn import (
    Addresses,
    ask_hccn_tool,
    find_addresses,
    loopback_note,
    own_address,
    read_hccn_conf,
)
from mindbatch.launch.rank_table import PLAIN, RESERVED_NIC, Device, RankTable, Server
from mindbatch.launch.table_entries import server_id_fault
from mindbatch.launch.table_files import name_for_server, name_for_servers
from mindbatch.launch.table_json import address_fault
from mindbatch.launch.table_reader import Leave, RankTableError, verify
from mindbatch.tasks.rank_table.schema import RankTableConfig

Assembled = tuple[RankTable, str, list[str]]
"""The table, the name of its file, and lines to be shown."""


def assemble(config: RankTableConfig) -> Assembled:
    """The table with its ranks. Raises ConfigError for what was given wrong, RankTableError for the rest."""
    table, name, notes = _of_this_server(config) if config.servers is None else _of_given_servers(config)
    verify(table, Leave(uneven=config.uneven))
    return table, name, notes


def _of_given_servers(config: RankTableConfig) -> Assembled:
    given = GivenServers()
    servers = given.read(config.servers)
    if given.faults:
        raise ConfigError(given.faults)
    nic = RESERVED_NIC if config.version == PLAIN else None
    named = [Server(each.server_id, each.devices, each.host_ip, nic, each.super_pod_id) for each in servers]
    table = RankTable.numbered(config.version, named)
    return table, name_for_servers(table), given.notes


def _of_this_server(config: RankTableConfig) -> Assembled:
    this = _ThisServer(config)
    if this.faults:
        raise ConfigError(this.faults)
    addresses, note = _addresses(config, this.physical)
    if addresses.faults:
        raise RankTableError(
            [
                *addresses.faults,
                "the addresses of this machine's NPUs are not known; give them, or those of other "
                "servers: servers='[{...}]' (see --help)",
            ]
        )
    devices = tuple(
        Device(device, device_ip=addresses.of[device], super_device_id=super_id)
        for device, super_id in zip(this.physical, this.super_ids, strict=True)
    )
    server = Server(this.server_id, devices, config.host_ip, this.nic, this.pod)
    name = name_for_server(this.logical, this.server_id)
    notes = [*this.notes, note, loopback_note(this.server_id)]
    return RankTable.numbered(config.version, [server]), name, [line for line in notes if line]


def _addresses(config: RankTableConfig, devices: list[int]) -> tuple[Addresses, str | None]:
    def ask() -> Addresses:
        return ask_hccn_tool(devices, config.hccn_tool, config.hccn_timeout)

    def read() -> Addresses:
        return read_hccn_conf(devices, Path(config.hccn_conf))

    if config.source == "auto":
        return find_addresses(ask, read)
    return (ask() if config.source == "hccn_tool" else read()), None


class _ThisServer:
    """Settings given for this server, with every validation error."""

    def __init__(self, config: RankTableConfig) -> None:
        self.faults: list[str] = []
        self.notes: list[str] = []
        is_plain = config.version == PLAIN
        self.nic = RESERVED_NIC if is_plain else None
        self.pod = None if is_plain else config.super_pod_id or "0"
        self.server_id = self._server_id(config.server_id)
        if config.host_ip is not None and (fault := address_fault(config.host_ip)):
            self.faults.append(f"host_ip={config.host_ip}: {fault}")
        self.logical = self._devices(config.devices)
        self.physical = self._physical(config.visible_devices)
        self.super_ids = self._super_ids(config)

    def _server_id(self, given: str | None) -> str:
        try:
            server_id = own_address() if given is None else given
        except ValueError as error:
            self.faults.append(f"server_id: must be given; {error}")
            return ""
        if fault := server_id_fault(server_id):
            self.faults.append(f"server_id={server_id}: {fault}")
        return server_id

    def _devices(self, given: str) -> list[int]:
        try:
            devices, note = parse_devices(given)
        except ValueError as error:
            self.faults.append(f"devices={given}: {error}")
            return []
        self.notes += [f"devices={given}: {note}"] if note else []
        return devices

    def _physical(self, visible: str | None) -> list[int]:
        try:
            return physical_devices(self.logical, None if visible is None else parse_list(visible))
        except ValueError as error:
            self.faults.append(f"visible_devices={visible}: {error}")
            return []

    def _super_ids(self, config: RankTableConfig) -> list[int] | list[None]:
        if config.version == PLAIN:
            return [None] * len(self.physical)
        parts = [part.strip() for part in (config.super_device_ids or "").split(",")]
        if not all(part.isascii() and part.isdecimal() for part in parts):
            self.faults.append(
                "super_device_ids: must be given in version 1.2: a number for each device, like 0,1,2,3"
            )
            return []
        ids = [int(part) for part in parts]
        if self.physical and len(ids) != len(self.physical):
            self.faults.append(
                f"super_device_ids: {len(ids)} for {len(self.physical)} devices; give one for each"
            )
        return ids
