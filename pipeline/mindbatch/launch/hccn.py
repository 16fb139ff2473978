"""Discovers a server's own address, and its devices' by `hccn_tool` or /etc/hccn.conf."""

import ipaddress
import re
import shutil
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from mindbatch.io.children import Finished, run
from mindbatch.io.regular_file import first_bytes
from mindbatch.io.storage import reason_of
from mindbatch.launch.table_json import address_error, as_given, shown
from mindbatch.launch.table_reader import RankTableError

AUTO = "auto"
HCCN_TOOL = "hccn_tool"
HCCN_CONF = "/etc/hccn.conf"
SECONDS = 10
LARGEST_CONF = 1 << 20
MAX_OUTPUT = 64 << 10
_CONF_LINE = re.compile(r"address_(\d{1,6})\s*=\s*(.*)", re.ASCII)


def ask_hccn_tool(
    devices: Sequence[int], program: str = HCCN_TOOL, seconds: float = SECONDS
) -> dict[int, str]:
    """Runs `hccn_tool -i N -ip -g` for each device; returns their addresses.

    program: a name that is looked for on the PATH, or a path.

    Raises:
        RankTableError: with a line for each device that has none; after one that hangs no other is tried.
    """
    path = shutil.which(program)
    if path is None:
        where = "cannot be run" if "/" in program else "not found on the PATH"
        raise RankTableError(f"{program}: {where}")
    addresses: dict[int, str] = {}
    errors: list[str] = []
    for device in devices:
        command = f"{program} -i {device} -ip -g"
        try:
            addresses[device] = _address_in(run([path, "-i", str(device), "-ip", "-g"], seconds, MAX_OUTPUT))
        except TimeoutError:
            errors.append(f"{command}: no answer in {seconds:g} s")
            break
        except OSError as error:
            errors.append(f"{command}: cannot be run ({reason_of(error)})")
            break
        except ValueError as error:
            errors.append(f"{command}: {error}")
    if errors:
        raise RankTableError(errors)
    return addresses


def _address_in(finished: Finished) -> str:
    """Reads the value of the line `ipaddr:...`. Raises ValueError when there is no valid one."""
    text = f"{finished.output}\n{finished.errors}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    quoted = f": {shown(lines[0])}" if lines else ""
    if finished.code:
        raise ValueError(f"failed with exit code {finished.code}{quoted}")
    for line in lines:
        key, colon, value = line.partition(":")  # an IPv6 address has colons of its own
        if colon and key.strip().lower() == "ipaddr":
            if error := address_error(value.strip()):
                raise ValueError(f"{shown(value.strip())}: {error}")
            return value.strip()
    raise ValueError(f"no line ipaddr:ADDRESS in its answer{quoted}")


def read_hccn_conf(devices: Sequence[int], path: Path = Path(HCCN_CONF)) -> dict[int, str]:
    """Reads the lines `address_N=ADDRESS` of devices; of the other lines nothing is needed.

    Raises:
        RankTableError: the file cannot be read, or with a line for each problem.
    """
    try:
        data = first_bytes(path, LARGEST_CONF + 1)
    except (OSError, ValueError) as error:  # ValueError: what is no path
        reason = reason_of(error) if isinstance(error, OSError) else error
        raise RankTableError(f"{path}: cannot be read ({reason})") from error
    if len(data) > LARGEST_CONF:
        raise RankTableError(f"{path}: more than {LARGEST_CONF >> 20} MiB")
    addresses: dict[int, str] = {}
    errors = [*_take_lines(data.decode(errors="replace"), {*devices}, addresses)]
    missing = [str(device) for device in devices if device not in addresses]
    if missing and not errors:
        raise RankTableError(f"{path}: no line address_N=ADDRESS for N = {', '.join(missing)}")
    if errors:
        raise RankTableError(f"{path} {problem}" for problem in errors)
    return addresses


def _take_lines(text: str, devices: set[int], addresses: dict[int, str]) -> Iterator[str]:
    """Adds the addresses of lines; yields what is wrong with them."""
    for number, line in enumerate(text.splitlines(), 1):
        match = _CONF_LINE.fullmatch(line.strip())
        if match is None or int(match[1]) not in devices:
            continue
        device, address = int(match[1]), match[2].strip()
        where = f"line {number}: address_{device}={as_given(address)}"
        if error := address_error(address):
            yield f"{where}: {error}"
        elif addresses.setdefault(device, address) != address:
            yield f"{where}: was {addresses[device]} above"


def find_addresses(
    devices: Sequence[int], program: str, seconds: float, conf: Path, source: str = AUTO
) -> tuple[dict[int, str], str | None]:
    """Addresses from the tool; where it lacks any, those of the file, with a note. Never some of each.

    source: AUTO, or the name of the only source to read.

    Raises:
        RankTableError: with the errors of all that was tried.
    """
    if source == "hccn_conf":
        return read_hccn_conf(devices, conf), None
    try:
        return ask_hccn_tool(devices, program, seconds), None
    except RankTableError as of_tool:
        if source != AUTO:
            raise
        try:
            known = read_hccn_conf(devices, conf)
        except RankTableError as of_file:
            raise RankTableError([*of_tool.lines, *of_file.lines]) from None
        return known, f"{of_tool.lines[0]}; the addresses are those of {conf}"


def own_address() -> str:
    """Looks up the address of this machine's host name. Raises ValueError when it has none."""
    name = socket.gethostname()
    try:
        return socket.gethostbyname(name)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"the host name {name} has no address") from error


def loopback_note(server_id: str) -> str | None:
    """Notes a loopback address, which every server has; None for any other name."""
    try:
        is_loopback = ipaddress.ip_address(server_id).is_loopback
    except ValueError:
        return None
    return (
        f"{server_id} is what every server calls itself; tables with it cannot be merged"
        if is_loopback
        else None
    )
