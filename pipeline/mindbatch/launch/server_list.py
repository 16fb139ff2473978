"""Servers and devices that a user lists: reads the keys of each, with every error in them."""

import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from mindbatch.io.error_lines import shown
from mindbatch.launch.rank_table import Device, RankTable, Server
from mindbatch.launch.table_fields import server_id_error
from mindbatch.launch.table_json import LARGEST_PORT


def own_server(table: RankTable) -> Server:
    """Finds the only server, or the one with a name or an address of this machine.

    Raises ValueError where none of several has, or more than one.
    """
    if len(table.servers) == 1:
        return table.servers[0]
    own = [
        server
        for server in table.servers
        if any(is_own_address(name) for name in (server.server_id, server.host_ip) if name is not None)
    ]
    if len(own) == 1:
        return own[0]
    count = "none" if not own else "more than one"
    names = ", ".join(shown(server.server_id) for server in table.servers[:8])
    here = socket.gethostname()
    raise ValueError(f"{count} of its servers ({names}) is this machine, {here}, by server_id or host_ip")


def is_own_address(name: str) -> bool:
    """True if `name` is this machine's host name or one of its addresses; nothing is looked up elsewhere."""
    if name == socket.gethostname():
        return True
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, name)
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind((name, 0))  # the kernel takes addresses of its own only
            return True
        except OSError:
            continue
    return False


def ranks_of(server: Server, devices: Sequence[int]) -> list[int]:
    """Finds the ranks of physical devices, in order. Raises ValueError naming those that the table lacks."""
    ranks = {device.device_id: device.rank_id for device in server.devices}
    if missing := [str(device) for device in devices if device not in ranks]:
        there = ", ".join(map(str, sorted(ranks)))
        raise ValueError(f"device {', '.join(missing)}: not among those of the rank table ({there})")
    return [ranks[device] for device in devices]


def address_of(server: Server) -> str:
    """Returns the address at which other servers may reach this one."""
    return server.host_ip or server.server_id


_TEXTS = ("host_ip", "super_pod_id")
_LISTS = {
    "device_ips": ("device_ip", str),
    "super_device_ids": ("super_device_id", int),
    "device_ports": ("device_port", int),
    "host_ports": ("host_port", int),
    "backup_device_ips": ("backup_device_ip", str),
    "backup_device_ports": ("backup_device_port", int),
}
KEYS = ("server_id", "devices", *_TEXTS, *_LISTS)


def server_list(value: Any, nic: str | None, errors: list[str], notes: list[str]) -> list[Server]:
    """Reads the list `servers`, in its order; a server with an error is left out.

    nic: `host_nic_ip` of each. errors, notes: are filled on the way.
    """
    if not isinstance(value, list) or not value:
        errors.append("servers: must be a list like [{server_id: 10.0.0.1, device_ips: [10.1.0.1]}]")
        return []
    servers = []
    for number, entry in enumerate(value):
        num_errors = len(errors)
        server = _server(f"servers[{number}]", entry, nic, errors, notes)
        servers += [server] if server is not None and len(errors) == num_errors else []
    return servers


def _server(location: str, entry: Any, nic: str | None, errors: list[str], notes: list[str]) -> Server | None:
    if not isinstance(entry, Mapping):
        errors.append(f"{location}: must have the keys server_id and device_ips, and may have others")
        return None
    known = ", ".join(KEYS)
    errors += [f"{location}.{key}: unknown key; there are {known}" for key in entry if key not in KEYS]
    lists = {key: _list(location, entry.get(key), key, errors) for key in _LISTS}
    longest = max(map(len, lists.values()))
    if entry.get("devices") is not None:
        numbers = _numbers(f"{location}.devices", entry["devices"], errors, notes)
    else:
        numbers = [*range(longest)]  # one for each of `device_ips`
        if not longest and "device_ips" not in entry:
            errors.append(f"{location}: device_ips or devices must be given")
    server_id = str(entry.get("server_id", ""))
    if error := server_id_error(server_id):
        errors.append(f"{location}.server_id={server_id}: {error}")
    errors += [
        f"{location}.{key}: {len(values)} for {len(numbers)} devices; give one for each"
        for key, values in lists.items()
        if values and numbers and len(values) != len(numbers)
    ]
    host_ip, super_pod_id = (None if entry.get(key) is None else str(entry[key]) for key in _TEXTS)
    return Server(server_id, _devices(numbers, lists), host_ip, nic, super_pod_id)


def _list(location: str, values: Any, key: str, errors: list[str]) -> list[Any]:
    """Reads the values of a key, one for each device; none where they are missing or invalid."""
    kind = _LISTS[key][1]
    if values is None:
        return []
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        items = "addresses" if kind is str else "whole numbers"
        errors.append(f"{location}.{key}: must be a list of {items}, one for each device")
        return []
    if "port" in key and not all(0 < value <= LARGEST_PORT for value in values):
        errors.append(f"{location}.{key}: must be from 1 to {LARGEST_PORT}")
    return values


def _numbers(location: str, written: Any, errors: list[str], notes: list[str]) -> list[int]:
    if isinstance(written, list):  # [0,8] could be meant as a range
        errors.append(f"{location}: must be a text, like '[0,8)' or '0,2,4'")
        return []
    try:
        numbers, note = parse_devices(str(written))
    except ValueError as error:
        errors.append(f"{location}={written}: {error}")
        return []
    notes += [f"{location}={written}: {note}"] if note else []
    return numbers


def _devices(numbers: list[int], lists: dict[str, list[Any]]) -> tuple[Device, ...]:
    entries: list[dict[str, Any]] = [{"device_id": number} for number in numbers]
    for key, (name, _) in _LISTS.items():
        for entry, value in zip(entries, lists[key], strict=False):
            entry[name] = value
    return tuple(Device(**entry) for entry in entries)


MAX_DEVICES = 1024
"""On one server; far above any, so that a slip of the finger does not fill the disk."""

_RANGE = re.compile(r"\[\s*(\d{1,6})\s*,\s*(\d{1,6})\s*([\])])", re.ASCII)
_LIST = re.compile(r"\d{1,6}(?:\s*,\s*\d{1,6})*", re.ASCII)


def parse_range(text: str) -> tuple[list[int], str | None]:
    """Parses [A,B) or [A,B]; returns the numbers, and a note where the bracket could mislead.

    The end is exclusive whatever the bracket, as run_dist_gen.sh and MindFormers' hccl_tools.py have it.
    Raises ValueError for anything else and for a range without numbers.
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise ValueError("must be a range of devices like [0,8)")
    begin, end = int(match[1]), int(match[2])
    if begin >= end:
        raise ValueError("holds no device; the end is exclusive and must be above the beginning")
    if end > MAX_DEVICES:
        raise ValueError(f"a server has no more than {MAX_DEVICES} devices")
    return list(range(begin, end)), _bracket_note(begin, end) if match[3] == "]" else None


def _bracket_note(begin: int, end: int) -> str:
    which = f"device {begin} alone" if end == begin + 1 else f"devices {begin} to {end - 1}"
    return (
        f"the end is exclusive whatever the bracket, as in run_dist_gen.sh: {which}; "
        f"write [{begin},{end}) for these, [{begin},{end + 1}) with device {end}"
    )


def parse_devices(text: str) -> tuple[list[int], str | None]:
    """Parses a range or a list like 0,2,4, whose order is kept. Raises ValueError."""
    if not _LIST.fullmatch(text.strip()):
        try:
            return parse_range(text)
        except ValueError as error:
            hint = " or a list like 0,2,4" if "range" in str(error) else ""
            raise ValueError(f"{error}{hint}") from None
    return parse_list(text), None


def parse_list(text: str) -> list[int]:
    """Parses a list like 4,5,6,7, each number once. Raises ValueError."""
    if not _LIST.fullmatch(text.strip()):
        raise ValueError("must be a list of devices like 4,5,6,7")
    numbers = [int(part) for part in text.split(",")]
    if repeated := sorted({number for number in numbers if numbers.count(number) > 1}):
        raise ValueError(f"device {repeated[0]} appears twice")
    if max(numbers) >= MAX_DEVICES or len(numbers) > MAX_DEVICES:
        raise ValueError(f"a server has no more than {MAX_DEVICES} devices")
    return numbers


def physical_devices(logical: list[int], visible: list[int] | None) -> list[int]:
    """Maps logical ids to physical ones: `visible[n]` is that of n; without a list they are the same.

    Raises ValueError naming those that are not visible.
    """
    if visible is None:
        return logical
    hidden = [number for number in logical if number >= len(visible)]
    if hidden:
        raise ValueError(
            f"device {', '.join(map(str, hidden))}: not there; {len(visible)} visible devices are numbered "
            f"0 to {len(visible) - 1}"
        )
    return [visible[number] for number in logical]
