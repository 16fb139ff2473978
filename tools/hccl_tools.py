"""Writes the rank table of this server, with the flags of MindFormers' tool of this name.

    python tools/hccl_tools.py                                  # devices 0 to 7
    python tools/hccl_tools.py --device_num "[0,16)" --device_num_per_node 16
    python tools/hccl_tools.py --device_num "[0,4)" --visible_devices 4,5,6,7

It overwrites the file hccl_{number}p_{devices}_{server}.json in the current folder. Differences from
MindFormers' tool: any range is allowed; addresses are those of the visible devices; invalid values are
errors. `mindbatch rank-table` also supports several servers, version 1.2 and checks. Only Python is needed.
"""

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pipeline"))  # installed or not

from mindbatch.io.errors import EXIT_DONE, ConfigError, MindBatchError
from mindbatch.io.screen_text import run_tool, say, show
from mindbatch.io.tool_parser import ToolParser
from mindbatch.launch.hccn import (
    HCCN_CONF,
    HCCN_TOOL,
    SECONDS,
    find_addresses,
    loopback_note,
    own_address,
)
from mindbatch.launch.rank_table import PLAIN, RESERVED_NIC, Device, RankTable, Server, table_rows
from mindbatch.launch.server_list import parse_list, parse_range, physical_devices
from mindbatch.launch.table_fields import server_id_error
from mindbatch.launch.table_files import name_for_server, write_table
from mindbatch.launch.table_json import as_given
from mindbatch.launch.table_reader import verify

NAME = "hccl_tools.py"
GROUP = 4
MAX_SECONDS = 3600


@dataclass
class Request:
    """The request of the flags, with all errors in them."""

    server_id: str = ""
    logical: list[int] = field(default_factory=list)
    physical: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def main(arguments: list[str] | None = None) -> int:
    """Writes the table, prints its ranks and path, and returns the exit code (docs/generate.md)."""
    options = parser().parse_args(arguments)
    try:
        request = read_request(options)
        table = table_of(request, options)
        path = Path.cwd() / name_for_server(request.logical, request.server_id)
        write_table(table, path)
    except MindBatchError as error:
        say(*error.lines, name=NAME)
        return error.exit_code
    say(*request.notes, name=NAME)
    show(*table_rows(table), f"Completed: the rank table is in: {path}")
    return EXIT_DONE


def parser() -> argparse.ArgumentParser:
    """Makes the parser of MindFormers' four flags and of three for the source of the addresses."""
    result = ToolParser(prog=NAME, description="Write the rank table of this server.")
    result.add_argument(
        "--device_num",
        default="[0,8)",
        help="[A,B): devices A to B-1, whatever the last bracket; %(default)s",
    )
    result.add_argument(
        "--visible_devices", help="physical ids of devices 0, 1, 2 ..., as in a container; the same numbers"
    )
    result.add_argument("--server_ip", default="", help="address of this server; that of the host name")
    result.add_argument("--device_num_per_node", type=int, default=8, help="devices of a server; %(default)s")
    result.add_argument("--hccn_tool", default=HCCN_TOOL, help="program that reports addresses; %(default)s")
    result.add_argument(
        "--hccn_timeout",
        type=float,
        default=SECONDS,
        help="time limit of the program in seconds; %(default)s",
    )
    result.add_argument(
        "--hccn_conf", default=HCCN_CONF, help="file to read if the program fails; %(default)s"
    )
    return result


def read_request(options: argparse.Namespace) -> Request:
    """Reads the request. Raises ConfigError with all errors in the flags."""
    request = Request()
    read_devices(options, request)
    if not 0 < options.hccn_timeout <= MAX_SECONDS:
        request.errors.append(
            f"--hccn_timeout {options.hccn_timeout:g}: must be above 0 and at most {MAX_SECONDS}"
        )
    try:
        request.server_id = options.server_ip or own_address()
        if error := server_id_error(request.server_id):
            request.errors.append(f"--server_ip {as_given(request.server_id)}: {error}")
    except ValueError as reason:
        request.errors.append(f"--server_ip must be given: {reason}")
    if request.errors:
        raise ConfigError(request.errors)
    request.notes += [note] if (note := loopback_note(request.server_id)) else []
    return request


def read_devices(options: argparse.Namespace, request: Request) -> None:
    """Reads the logical and physical ids of the requested devices."""
    flag = f"--device_num {as_given(options.device_num)}"
    try:
        request.logical, note = parse_range(options.device_num)
    except ValueError as error:
        request.errors.append(f"{flag}: {error}")
        return
    request.notes += [f"{flag}: {note}"] if note else []
    end, num_devices = request.logical[-1] + 1, options.device_num_per_node
    if end > num_devices:
        request.errors.append(
            f"{flag}: must be within [0,{num_devices}); set --device_num_per_node {end} for a larger server"
        )
    try:
        visible = None if options.visible_devices is None else parse_list(options.visible_devices)
        request.physical = physical_devices(request.logical, visible)
    except ValueError as error:
        request.errors.append(f"--visible_devices {as_given(options.visible_devices)}: {error}")
    request.notes += [f"{flag}: {note}" for note in group_notes(request.physical)]


def group_notes(devices: list[int]) -> list[str]:
    """Returns a note on devices of two groups, which MindFormers' tool refuses for older servers."""
    if not devices or len(devices) >= 2 * GROUP or max(devices) >= 2 * GROUP:
        return []
    if len({device // GROUP for device in devices}) == 1:
        return []
    return ["devices of both 0 to 3 and 4 to 7; servers in which these are groups need complete groups"]


def table_of(request: Request, options: argparse.Namespace) -> RankTable:
    """Makes the table with addresses. Raises RankTableError if they cannot be found."""
    addresses, note = find_addresses(
        request.physical, options.hccn_tool, options.hccn_timeout, Path(options.hccn_conf)
    )
    request.notes += [note] if note else []
    devices = tuple(Device(device, device_ip=addresses[device]) for device in request.physical)
    table = RankTable.numbered(PLAIN, [Server(request.server_id, devices, host_nic_ip=RESERVED_NIC)])
    verify(table)
    return table


if __name__ == "__main__":
    run_tool(main, NAME)
