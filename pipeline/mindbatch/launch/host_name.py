"""What this server calls itself in a rank table."""

import ipaddress
import socket


def own_address() -> str:
    """The address of this machine's host name. Raises ValueError when it has none."""
    name = socket.gethostname()
    try:
        return socket.gethostbyname(name)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"the host name {name} has no address") from error


def loopback_note(server_id: str) -> str | None:
    """What to say of an address that every server has of itself; None for any other name."""
    try:
        is_loopback = ipaddress.ip_address(server_id).is_loopback
    except ValueError:
        return None
    return (
        f"{server_id} is what every server calls itself; tables with it cannot be merged"
        if is_loopback
        else None
    )
