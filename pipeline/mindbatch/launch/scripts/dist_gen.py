"""scripts/run_dist_gen.sh: a command on the devices of a rank table, with MindFormers' four arguments."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mindbatch.config.launch_schema import USER_KEYS
from mindbatch.io.error_lines import shown
from mindbatch.io.errors import ConfigError
from mindbatch.io.storage import write_whole
from mindbatch.launch.process_log import made_folder
from mindbatch.launch.rank_table import RankTable, Server, counted
from mindbatch.launch.scripts.execute_order import ExecuteOrder, read_order, with_input, with_launch
from mindbatch.launch.scripts.program_ranks import (
    ARGUMENTS_ARE_RIGHT,
    ProgramRanks,
    Script,
    ScriptJob,
    run_script,
)
from mindbatch.launch.server_list import (
    address_of,
    own_server,
    parse_list,
    parse_range,
    physical_devices,
    ranks_of,
)
from mindbatch.launch.table_json import read_json
from mindbatch.launch.table_reader import AllowedDeviations, RankTableError, read_rank_table

NAME = "run_dist_gen.sh"
LOGS = "output/log"
VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
_MAX_DIGITS = 7
SCRIPT = Script(
    NAME,
    f"""usage: bash scripts/{NAME} "EXECUTE_ORDER" RANK_TABLE "[A,B)" RANK_SIZE

Runs a command on devices A to B-1 of this server; B is exclusive whatever the bracket.

EXECUTE_ORDER  the command, as one argument. It is split as a shell splits it and never evaluated.
               mindbatch ... and generate_custom.py start the ranks themselves; any other program
               is run once for each rank, with RANK_ID, DEVICE_ID, RANK_SIZE and RANK_TABLE_FILE set
RANK_TABLE     rank table of the job, which is checked before anything starts
RANK_SIZE      ranks of the job on all servers; the rank table must have as many

INPUT_DATA     environment: other programs get --input_data "$INPUT_DATA"; for mindbatch generate it is
               the prompt, or a file with one on each line
PYTHON         environment: the Python that has MindBatch; that of the active environment, if it has,
               else the checkout's .venv

It waits; logs are {LOGS}/rank_N.log; the exit code is that of the first process that fails.""",
    (4,),
)


@dataclass(frozen=True)
class DevicePlacement:
    """The requested devices, by the number that a process here uses, and their ranks."""

    table: RankTable
    server: Server
    devices: list[int]
    ranks: list[int]


def main() -> None:
    run_script(SCRIPT, read_job)


def check_arguments() -> None:
    run_script(SCRIPT, read_job, lambda job: ARGUMENTS_ARE_RIGHT)


def read_job(arguments: list[str], environment: Mapping[str, str]) -> ScriptJob:
    """Reads the job of the four arguments. Raises ConfigError with every error."""
    text, table_path, devices, size = arguments
    path = Path(table_path).absolute()
    errors: list[str] = []
    notes: list[str] = []
    order = with_input(read_order(text, errors), environment.get("INPUT_DATA"), notes, errors)
    placement = _placement(path, devices, size, environment.get(VISIBLE), errors)
    if placement is not None and order.starts_its_ranks:
        order = with_launch(order, NAME, _launch_values(path, placement), errors)
    if errors or placement is None:
        raise ConfigError(errors)
    ranks = None if order.starts_its_ranks else _ranks(order, path, placement)
    user_keys = {USER_KEYS: "worker_num=RANK_SIZE,rank_table=RANK_TABLE"}
    return ScriptJob(order, ranks, user_keys, notes=tuple(notes))


def _placement(
    path: Path, devices: str, size: str, visible: str | None, errors: list[str]
) -> DevicePlacement | None:
    """Finds the ranks of this machine; adds to `errors` and returns None if something is invalid."""
    num_errors = len(errors)
    num_ranks = _rank_size(size, errors)
    numbers = _numbers(devices, num_ranks, errors)
    table = _table(path, num_ranks, errors)
    if len(errors) > num_errors or table is None:
        return None
    try:
        server = own_server(table)
    except ValueError as error:
        errors.append(f"{path}: {error}")
        return None
    try:
        physical = physical_devices(numbers, None if visible is None else parse_list(visible))
        ranks = ranks_of(server, physical)
    except ValueError as error:
        where = "" if visible is None else f" with {VISIBLE}={shown(visible)}"
        errors.append(f"{devices}{where}: {error}")
        return None
    if len(ranks) != len(server.devices):
        errors.append(
            f"{devices}: {len(ranks)} of the {len(server.devices)} devices that this server has in {path}; "
            "the job needs all of them"
        )
        return None
    return DevicePlacement(table, server, numbers, ranks)


def _rank_size(text: str, errors: list[str]) -> int | None:
    if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS and int(text) > 0:
        return int(text)
    errors.append(f"RANK_SIZE {shown(text)}: must be a whole number above 0")
    return None


def _numbers(devices: str, num_ranks: int | None, errors: list[str]) -> list[int]:
    """Reads the devices of the range, which may not be more than the ranks."""
    try:
        numbers, note = parse_range(devices)
    except ValueError as error:
        errors.append(f"{shown(devices)}: {error}")
        return []
    if num_ranks is not None and len(numbers) > num_ranks:
        errors.append(f"{devices}: {len(numbers)} devices for RANK_SIZE {num_ranks}")
    if num_ranks == len(numbers) + 1 and note is not None:
        errors.append(f"{devices}: {note}")
    return numbers


def _table(path: Path, num_ranks: int | None, errors: list[str]) -> RankTable | None:
    """Reads the rank table, if it is correct; it must be for so many ranks."""
    try:
        table, _ = read_rank_table(path, AllowedDeviations(uneven=True))
    except RankTableError as error:
        errors += error.lines
        return None
    if num_ranks is not None and table.num_ranks != num_ranks:
        errors.append(f"RANK_SIZE {num_ranks}: {path} has {counted(table)}")
    return table


def _ranks(order: ExecuteOrder, path: Path, placement: DevicePlacement) -> ProgramRanks:
    """Plans a process for each device, with the variables that MindFormers' script sets."""
    path = _as_hccl_reads_it(path, placement.table)
    variables = {
        f"rank_{rank}": {
            "RANK_ID": str(rank),
            "DEVICE_ID": str(device),
            "RANK_SIZE": str(placement.table.num_ranks),
            "RANK_TABLE_FILE": str(path),
        }
        for device, rank in zip(placement.devices, placement.ranks, strict=True)
    }
    return ProgramRanks(order.words, variables, Path.cwd() / LOGS, shown=True)


def _as_hccl_reads_it(path: Path, table: RankTable) -> Path:
    """Returns the file, or for ModelArts' form, which HCCL does not know, one beside the logs."""
    if "server_list" in read_json(path):
        return path
    written = made_folder(Path.cwd() / LOGS) / "rank_table.json"
    write_whole(written, table.to_bytes())
    return written


def _launch_values(path: Path, placement: DevicePlacement) -> dict[str, str | int]:
    values: dict[str, str | int] = {
        "launcher": "rank_table",
        "rank_table": str(path),
        "worker_num": placement.table.num_ranks,
        "log_dir": str(Path.cwd() / LOGS),
    }
    servers = sorted(placement.table.servers, key=lambda server: server.devices[0].rank_id)
    if len(servers) > 1:
        values["node_rank"] = servers.index(placement.server)
        values["master_addr"] = address_of(servers[0])
    return values


if __name__ == "__main__":
    main()
