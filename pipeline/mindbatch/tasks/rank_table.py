"""`mindbatch rank-table`: writes the table of one server or several, checks tables, merges them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from mindbatch.config.paths import any_path, input_file_error, output_file_error, resolved
from mindbatch.config.schema import SchemaKeys, TaskConfig, excludes, needs, option, section
from mindbatch.fields import kinds as kind
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED, ConfigError
from mindbatch.io.screen_text import printable, say, show, show_json
from mindbatch.launch.hccn import find_addresses, loopback_note, own_address
from mindbatch.launch.rank_table import PLAIN, RESERVED_NIC, Device, RankTable, Server, counted, table_rows
from mindbatch.launch.server_list import parse_devices, parse_list, physical_devices, server_list
from mindbatch.launch.table_fields import server_id_error
from mindbatch.launch.table_files import (
    CheckedFile,
    check_files,
    merge_files,
    name_for_server,
    name_for_servers,
    write_table,
)
from mindbatch.launch.table_json import address_error
from mindbatch.launch.table_reader import AllowedDeviations, RankTableError, verify

WRITE, CHECK, MERGE = "write", "check", "merge"
_TO_WRITE = needs("action", WRITE, remedy="")
_TO_A_FILE = (needs("action", WRITE, MERGE, remedy=""),)
_OF_THIS_SERVER = (_TO_WRITE, excludes("servers"))
_OF_SUPERNODES = (*_OF_THIS_SERVER, needs("version", "1.2"))


@dataclass
class RankTableOutputConfig:
    """The file of the table, and what is printed."""

    file: str | None = option(
        None,
        "file to write; null: hccl_... in the current folder, named as hccl_tools.py and merge_hccl.py do",
        is_path=True,
        needs=_TO_A_FILE,
    )
    replace: bool = option(False, "overwrite a file with another content", needs=_TO_A_FILE)
    format: str = option("text", "form of the output: text or json", kind.choice("text", "json"))


@dataclass
class RankTableConfig(TaskConfig):
    """The keys of `mindbatch rank-table`."""

    positional: ClassVar[tuple[str, ...]] = ("action",)
    positional_rest: ClassVar[str] = "files"

    action: str = option(
        WRITE,
        "write a table, check those in files, or merge those in files",
        kind.choice(WRITE, CHECK, MERGE),
    )
    files: Any = option(
        (),
        "rank tables: to check, the copies of all servers; to merge, in the order that the ranks shall have",
        kind.texts("files"),
    )
    num_ranks: int | None = option(None, "ranks that a table must have; null: any number", kind.count(1))
    uneven: bool = option(False, "allow servers with different numbers of devices")
    verbose: bool = option(False, "show tracebacks")
    output: RankTableOutputConfig = section(RankTableOutputConfig)

    version: str = option(
        "1.0",
        "1.0: servers; 1.2: supernodes (Atlas A3), with super_device_ids",
        kind.choice("1.0", "1.2"),
        topic="To write a table of this server",
        needs=(_TO_WRITE,),
    )
    devices: str = option(
        "[0,8)",
        "[A,B): A to B-1; [A,B] is the same, for the end is exclusive as in run_dist_gen.sh; or a list: 0,2",
        needs=_OF_THIS_SERVER,
    )
    visible_devices: str | None = option(
        None,
        "physical ids of devices 0, 1, 2 ..., in a container: 4,5,6,7; null: the same numbers",
        needs=_OF_THIS_SERVER,
    )
    server_id: str | None = option(
        None, "name or address of this server; null: the host name's address", needs=_OF_THIS_SERVER
    )
    host_ip: str | None = option(
        None, "address of the host; HCCL needs it to run operators again", needs=_OF_THIS_SERVER
    )
    super_pod_id: str | None = option(
        None, "supernode of this server; null in version 1.2: 0", needs=_OF_SUPERNODES
    )
    super_device_ids: str | None = option(
        None,
        "SDIDs of the devices, as `npu-smi info -t spod-info -i ID -c CHIP` shows them: 0,1,2,3",
        needs=_OF_SUPERNODES,
    )
    source: str = option(
        "auto",
        "where the addresses come from; auto: hccn_tool, or else hccn_conf",
        kind.choice("auto", "hccn_tool", "hccn_conf"),
        needs=_OF_THIS_SERVER,
    )
    hccn_tool: str = option(
        "hccn_tool", "the program: its name on the PATH, or its path", needs=_OF_THIS_SERVER
    )
    hccn_timeout: int = option(
        10, "seconds for each answer of hccn_tool", kind.count(1), needs=_OF_THIS_SERVER
    )
    hccn_conf: str = option(
        "/etc/hccn.conf",
        "the file with lines address_N=ADDRESS",
        is_path=True,
        needs=_OF_THIS_SERVER,
    )

    servers: Any = option(
        None,
        "servers in the order of their ranks, like [{server_id: 10.0.0.1, device_ips: [10.1.0.1]}]; "
        "docs/distributed.md has all their keys",
        kind.described("list of servers or null"),
        topic="To write a table of servers with known addresses",
        needs=(_TO_WRITE,),
    )

    def resolve_paths(self) -> list[str]:
        errors: list[str] = []
        if isinstance(self.files, list | tuple):
            error_of = input_file_error("a rank table")
            self.files = tuple(resolved("files", str(file), error_of, errors) for file in self.files)
        self.output.file = resolved("output.file", self.output.file, output_file_error, errors)
        if self.hccn_tool.startswith("~"):  # else it may be a name on the PATH
            self.hccn_tool = resolved("hccn_tool", self.hccn_tool, any_path, errors) or self.hccn_tool
        self.hccn_conf = resolved("hccn_conf", self.hccn_conf, any_path, errors) or self.hccn_conf
        return errors

    def own_errors(self, keys: SchemaKeys) -> Iterable[str]:
        if self.action == WRITE and self.files:
            yield "files: not read to write a table; mindbatch rank-table check FILE ... or merge FILE ..."
        elif self.action in (CHECK, MERGE) and not self.files:
            yield f"files: must be given: mindbatch rank-table {self.action} FILE ..."


Assembled = tuple[RankTable, str, list[str]]
"""The table, the name of its file, and notes to print."""


def run(config: RankTableConfig) -> int:
    """Runs the task; `check` fails when a table has an error."""
    if config.action == CHECK:
        return _check(config)
    table, name, notes = _merged(config) if config.action == MERGE else assemble(config)
    say(*notes)
    return _save(config, table, name)


def _merged(config: RankTableConfig) -> Assembled:
    table, notes = merge_files([*map(Path, config.files)], AllowedDeviations(uneven=config.uneven))
    return table, name_for_servers(table), notes


def _save(config: RankTableConfig, table: RankTable, name: str) -> int:
    if config.num_ranks not in (None, table.num_ranks):
        raise RankTableError(f"the table would have {table.num_ranks} ranks; num_ranks={config.num_ranks}")
    path = Path(config.output.file or name)
    try:
        is_new = write_table(table, path, config.output.replace)
    except FileExistsError:
        raise ConfigError(
            f"output.file={path}: holds something else; output.replace=true writes over it"
        ) from None
    if config.output.format == "json":
        show_json({"file": str(path), "table": table.to_json()})
    else:
        show(*table_rows(table), _verdict(path, table, is_new))
    return EXIT_DONE


def _verdict(path: Path, table: RankTable, is_new: bool) -> str:
    done = "written" if is_new else "was there already, with the same content"
    return f"{printable(str(path))}: {done}: version {table.version}, {counted(table)}"


def _check(config: RankTableConfig) -> int:
    checked = check_files(
        [*map(Path, config.files)], config.num_ranks, AllowedDeviations(uneven=config.uneven)
    )
    is_correct = all(file.is_correct for file in checked)
    if config.output.format == "json":
        files = [_as_json(file) for file in checked]
        show_json({"is_correct": is_correct, "files": files})
    else:
        show(*(line for file in checked for line in _as_text(file)))
    return EXIT_DONE if is_correct else EXIT_FAILED


def _as_json(checked: CheckedFile) -> dict[str, object]:
    table = checked.table
    return {
        "file": checked.name,
        "is_correct": checked.is_correct,
        "version": table.version if table else None,
        "servers": len(table.servers) if table else None,
        "ranks": table.num_ranks if table else None,
        "errors": checked.errors,
        "notes": checked.notes,
    }


def _as_text(checked: CheckedFile) -> list[str]:
    """Makes a line for each error and note, with the name of the file, like a compiler's."""
    name = printable(checked.name)
    lines = [f"{name}: {printable(error)}" for error in checked.errors]
    if checked.is_correct and checked.table:
        lines.append(f"{name}: correct: version {checked.table.version}, {counted(checked.table)}")
    return [*lines, *(f"{name}: note: {printable(note)}" for note in checked.notes)]


def assemble(config: RankTableConfig) -> Assembled:
    """Makes the table. Raises ConfigError for wrong keys, and RankTableError for all other errors."""
    table, name, notes = _of_this_server(config) if config.servers is None else _of_server_list(config)
    verify(table, AllowedDeviations(uneven=config.uneven))
    return table, name, notes


def _of_server_list(config: RankTableConfig) -> Assembled:
    errors: list[str] = []
    notes: list[str] = []
    nic = RESERVED_NIC if config.version == PLAIN else None
    servers = server_list(config.servers, nic, errors, notes)
    if errors:
        raise ConfigError(errors)
    table = RankTable.numbered(config.version, servers)
    return table, name_for_servers(table), notes


def _of_this_server(config: RankTableConfig) -> Assembled:
    errors: list[str] = []
    is_plain = config.version == PLAIN
    server_id = _server_id(config.server_id, errors)
    if config.host_ip is not None and (problem := address_error(config.host_ip)):
        errors.append(f"host_ip={config.host_ip}: {problem}")
    text, visible = config.devices, config.visible_devices
    no_devices: tuple[list[int], str | None] = ([], None)
    logical, range_note = _parsed(f"devices={text}", lambda: parse_devices(text), no_devices, errors)
    physical: list[int] = _parsed(
        f"visible_devices={visible}",
        lambda: physical_devices(logical, None if visible is None else parse_list(visible)),
        [],
        errors,
    )
    super_ids: list[int | None] = (
        [None] * len(physical) if is_plain else _super_ids(config, len(physical), errors)
    )
    if errors:
        raise ConfigError(errors)
    conf = Path(config.hccn_conf)
    try:
        addresses, address_note = find_addresses(
            physical, config.hccn_tool, config.hccn_timeout, conf, config.source
        )
    except RankTableError as error:
        unknown = (
            "the addresses of this machine's NPUs are not known; give them, or those of other servers: "
            "servers='[{...}]' (see --help)"
        )
        raise RankTableError([*error.lines, unknown]) from None
    devices = tuple(
        Device(device, device_ip=addresses[device], super_device_id=super_id)
        for device, super_id in zip(physical, super_ids, strict=True)
    )
    nic, pod = (RESERVED_NIC, None) if is_plain else (None, config.super_pod_id or "0")
    table = RankTable.numbered(config.version, [Server(server_id, devices, config.host_ip, nic, pod)])
    notes = [range_note and f"devices={text}: {range_note}", address_note, loopback_note(server_id)]
    return table, name_for_server(logical, server_id), [line for line in notes if line]


Value = TypeVar("Value")


def _parsed(user_key: str, parse: Callable[[], Value], default: Value, errors: list[str]) -> Value:
    try:
        return parse()
    except ValueError as error:
        errors.append(f"{user_key}: {error}")
        return default


def _server_id(name: str | None, errors: list[str]) -> str:
    try:
        server_id = own_address() if name is None else name
    except ValueError as error:
        errors.append(f"server_id: must be given; {error}")
        return ""
    if problem := server_id_error(server_id):
        errors.append(f"server_id={server_id}: {problem}")
    return server_id


def _super_ids(config: RankTableConfig, count: int, errors: list[str]) -> list[int | None]:
    parts = [part.strip() for part in (config.super_device_ids or "").split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        errors.append(
            "super_device_ids: must be given in version 1.2: a number for each device, like 0,1,2,3"
        )
    elif count and len(parts) != count:
        errors.append(f"super_device_ids: {len(parts)} for {count} devices; give one for each")
    else:
        return [int(part) for part in parts]
    return []
