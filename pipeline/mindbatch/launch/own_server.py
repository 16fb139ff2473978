"""Finds this machine's server in a rank table, and the ranks that its devices have there."""

import socket
from collections.abc import Sequence

from mindbatch.io.fault_lines import shown
from mindbatch.launch.rank_table import RankTable, Server


def own_server(table: RankTable) -> Server:
    """The only server, or the one with a name or an address of this machine.

    Raises ValueError where none of several has, or more than one.
    """
    if len(table.servers) == 1:
        return table.servers[0]
    own = [server for server in table.servers if _is_own(server)]
    if len(own) == 1:
        return own[0]
    how_many = "none" if not own else "more than one"
    names = ", ".join(shown(server.server_id) for server in table.servers[:8])
    here = socket.gethostname()
    raise ValueError(f"{how_many} of its servers ({names}) is this machine, {here}, by server_id or host_ip")


def _is_own(server: Server) -> bool:
    return any(is_own_address(name) for name in (server.server_id, server.host_ip) if name is not None)


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
    """The ranks of physical devices, in their order. Raises ValueError naming those that the table lacks."""
    ranks = {device.device_id: device.rank_id for device in server.devices}
    if missing := [str(device) for device in devices if device not in ranks]:
        there = ", ".join(map(str, sorted(ranks)))
        raise ValueError(f"device {', '.join(missing)}: not among those of the rank table ({there})")
    return [ranks[device] for device in devices]


def address_of(server: Server) -> str:
    """Returns the address at which other servers may reach this one."""
    return server.host_ip or server.server_id
