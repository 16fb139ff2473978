"""Discovers a server's own address, and its devices' by `hccn_tool` or /etc/hccn.conf."""

import ipaddress
import re
import shutil
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mindbatch.io.children import Finished, run
from mindbatch.io.regular_file import first_bytes
from mindbatch.io.storage import reason_of
from mindbatch.launch.table_json import address_fault, as_given, shown

HCCN_TOOL = "hccn_tool"
HCCN_CONF = "/etc/hccn.conf"
SECONDS = 10
LARGEST_CONF = 1 << 20
MOST_OUTPUT = 64 << 10
_CONF_LINE = re.compile(r"address_(\d{1,6})\s*=\s*(.*)", re.ASCII)


@dataclass
class Addresses:
    """By device the address found, and a line for each thing that went wrong."""

    source: str
    of: dict[int, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def ask_hccn_tool(devices: Sequence[int], program: str = HCCN_TOOL, seconds: float = SECONDS) -> Addresses:
    """Runs `hccn_tool -i N -ip -g` for each device; after one that hangs no other is tried.

    program: a name that is looked for on the PATH, or a path.
    """
    addresses = Addresses(program)
    path = shutil.which(program)
    if path is None:
        where = "cannot be run" if "/" in program else "not found on the PATH"
        addresses.faults.append(f"{program}: {where}")
        return addresses
    for device in devices:
        command = [path, "-i", str(device), "-ip", "-g"]
        asked = f"{program} -i {device} -ip -g"
        try:
            answer = _address_in(run(command, seconds, MOST_OUTPUT))
        except TimeoutError:
            addresses.faults.append(f"{asked}: no answer in {seconds:g} s")
            break
        except OSError as error:
            addresses.faults.append(f"{asked}: cannot be run ({reason_of(error)})")
            break
        except ValueError as error:
            addresses.faults.append(f"{asked}: {error}")
            continue
        addresses.of[device] = answer
    return addresses


def _address_in(finished: Finished) -> str:
    """The value of the line `ipaddr:...`. Raises ValueError when there is none that can be used."""
    text = f"{finished.output}\n{finished.errors}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    quoted = f": {shown(lines[0])}" if lines else ""
    if finished.code:
        raise ValueError(f"failed with exit code {finished.code}{quoted}")
    for line in lines:
        key, colon, value = line.partition(":")  # an IPv6 address has colons of its own
        if colon and key.strip().lower() == "ipaddr":
            if fault := address_fault(value.strip()):
                raise ValueError(f"{shown(value.strip())}: {fault}")
            return value.strip()
    raise ValueError(f"no line ipaddr:ADDRESS in its answer{quoted}")


def read_hccn_conf(devices: Sequence[int], path: Path = Path(HCCN_CONF)) -> Addresses:
    """Reads the lines `address_N=ADDRESS`; of the other lines nothing is needed."""
    addresses = Addresses(str(path))
    try:
        data = first_bytes(path, LARGEST_CONF + 1)
    except (OSError, ValueError) as error:  # ValueError: what is no path
        reason = reason_of(error) if isinstance(error, OSError) else error
        addresses.faults.append(f"{path}: cannot be read ({reason})")
        return addresses
    if len(data) > LARGEST_CONF:
        addresses.faults.append(f"{path}: more than {LARGEST_CONF >> 20} MiB")
        return addresses
    _take_lines(data.decode(errors="replace"), {*devices}, addresses)
    missing = [str(device) for device in devices if device not in addresses.of]
    if missing and not addresses.faults:
        addresses.faults.append(f"{path}: no line address_N=ADDRESS for N = {', '.join(missing)}")
    return addresses


def _take_lines(text: str, devices: set[int], addresses: Addresses) -> None:
    for number, line in enumerate(text.splitlines(), 1):
        match = _CONF_LINE.fullmatch(line.strip())
        if match is None or int(match[1]) not in devices:
            continue
        device, address = int(match[1]), match[2].strip()
        where = f"{addresses.source} line {number}: address_{device}={as_given(address)}"
        if fault := address_fault(address):
            addresses.faults.append(f"{where}: {fault}")
        elif addresses.of.setdefault(device, address) != address:
            addresses.faults.append(f"{where}: was {addresses.of[device]} above")


def find_addresses(
    ask: Callable[[], Addresses], read: Callable[[], Addresses]
) -> tuple[Addresses, str | None]:
    """Addresses from the tool; where it lacks any, those of the file, with a note.

    Never some of each. When neither has all addresses, the faults are those of both.
    """
    asked = ask()
    if not asked.faults:
        return asked, None
    known = read()
    if known.faults:
        return Addresses(asked.source, {}, [*asked.faults, *known.faults]), None
    return known, f"{asked.faults[0]}; the addresses are those of {known.source}"


def own_address() -> str:
    """The address of this machine's host name. Raises ValueError when it has none."""
    name = socket.gethostname()
    try:
        return socket.gethostbyname(name)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"the host name {name} has no address") from error


def loopback_note(server_id: str) -> str | None:
    """A note on a loopback address, which every server has; None for any other name."""
    try:
        is_loopback = ipaddress.ip_address(server_id).is_loopback
    except ValueError:
        return None
    return (
        f"{server_id} is what every server calls itself; tables with it cannot be merged"
        if is_loopback
        else None
    )
