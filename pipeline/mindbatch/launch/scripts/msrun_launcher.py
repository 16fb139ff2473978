"""scripts/msrun_launcher.sh: a command on the workers of a dynamic cluster, with MindFormers' arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mindbatch.config.launch_schema import USER_KEYS
from mindbatch.io.error_lines import shown
from mindbatch.io.errors import ConfigError
from mindbatch.launch.free_ports import HeldPort, port_error
from mindbatch.launch.scripts.execute_order import ExecuteOrder, read_order, with_input, with_launch
from mindbatch.launch.scripts.program_ranks import (
    ARGUMENTS_ARE_RIGHT,
    ProgramRanks,
    Script,
    ScriptJob,
    run_script,
)
from mindbatch.launch.server_list import is_own_address

NAME = "msrun_launcher.sh"
NAMES = {
    1: ("EXECUTE_ORDER",),
    2: ("EXECUTE_ORDER", "WORKER_NUM"),
    6: ("EXECUTE_ORDER", "WORKER_NUM", "MASTER_PORT", "LOG_DIR", "JOIN", "CLUSTER_TIME_OUT"),
    9: (
        *("EXECUTE_ORDER", "WORKER_NUM", "LOCAL_WORKER", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK"),
        *("LOG_DIR", "JOIN", "CLUSTER_TIME_OUT"),
    ),
}
_USER_KEYS = "worker_num=WORKER_NUM,local_worker_num=LOCAL_WORKER,node_rank=NODE_RANK,log_dir=LOG_DIR,"
_USER_KEYS += "master_addr=MASTER_ADDR,master_port=MASTER_PORT"
DEFAULTS = {
    "WORKER_NUM": "8",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "8118",
    "NODE_RANK": "0",
    "LOG_DIR": "output/msrun_log",
    "JOIN": "False",
    "CLUSTER_TIME_OUT": "7200",
}
SCRIPT = Script(
    NAME,
    f"""usage: bash scripts/{NAME} "EXECUTE_ORDER"
       bash scripts/{NAME} "EXECUTE_ORDER" WORKER_NUM
       bash scripts/{NAME} "EXECUTE_ORDER" WORKER_NUM MASTER_PORT LOG_DIR JOIN CLUSTER_TIME_OUT
       bash scripts/{NAME} "EXECUTE_ORDER" WORKER_NUM LOCAL_WORKER MASTER_ADDR MASTER_PORT NODE_RANK \\
           LOG_DIR JOIN CLUSTER_TIME_OUT

Runs a command on WORKER_NUM workers, LOCAL_WORKER of them on this machine, which is number NODE_RANK.

EXECUTE_ORDER     the command, as one argument. It is split as a shell splits it and never evaluated.
                  mindbatch ... and generate_custom.py start the ranks themselves; any other program
                  is run for each worker, with the variables that msrun sets. NAME.py is run by python
JOIN              True shows what the workers print; it waits for them in any case
CLUSTER_TIME_OUT  seconds in which all workers must have come

Defaults: {", ".join(f"{name} {value}" for name, value in DEFAULTS.items())}.

MF_LOG_SUFFIX     environment: put behind the names of the folders of logs
LOG_MF_PATH       environment: MindFormers' own logs; output/log
PLOG_REDIRECT_TO_OUTPUT  environment: True puts the logs of CANN into output/plog
INPUT_DATA, PYTHON       environment: as for run_dist_gen.sh

It waits; logs are LOG_DIR/worker_N.log; the exit code is that of the first process that fails.""",
    (1, 2, 6, 9),
)
_LARGEST_PORT = 65535
_MAX_WORKERS = 1 << 16
_MAX_SECONDS = 1 << 31
_LONGEST_SUFFIX = 100


@dataclass
class Settings:
    """The arguments, with every error in them. drawn_port: one that was drawn instead of the usual one."""

    workers: int
    local_workers: int
    address: str
    port: int
    node: int
    logs: str
    is_shown: bool
    seconds: int
    errors: list[str] = field(default_factory=list)
    drawn_port: HeldPort | None = None


def main() -> None:
    run_script(SCRIPT, read_job)


def check_arguments() -> None:
    run_script(SCRIPT, read_job, lambda job: ARGUMENTS_ARE_RIGHT)


def read_job(arguments: list[str], environment: Mapping[str, str]) -> ScriptJob:
    """Reads the job of the arguments and the variables. Raises ConfigError with every error."""
    by_name = dict(zip(NAMES[len(arguments)], arguments, strict=True))
    notes: list[str] = []
    settings = read_settings(by_name)
    errors = settings.errors
    variables = log_variables(environment, settings, errors)
    order = read_order(by_name["EXECUTE_ORDER"], errors)
    if not errors and not order.starts_its_ranks:
        _resolve_port(settings, "MASTER_PORT" in by_name, notes)
    order = with_input(order, environment.get("INPUT_DATA"), notes, errors)
    if order.starts_its_ranks:
        order = with_launch(order, NAME, _launch_values(by_name, settings), errors)
    if errors:
        raise ConfigError(errors)
    if order.starts_its_ranks:
        return ScriptJob(order, None, variables | {USER_KEYS: _USER_KEYS}, tuple(notes))
    return ScriptJob(order, _ranks(order, settings, variables), notes=tuple(notes))


def read_settings(by_name: Mapping[str, str]) -> Settings:
    errors: list[str] = []
    texts = DEFAULTS | dict(by_name)

    def number(name: str, least: int, largest: int) -> int:
        text = texts[name]
        if text.isascii() and text.isdigit() and len(text) <= 10 and least <= int(text) <= largest:
            return int(text)
        errors.append(f"{name} {shown(text)}: must be a whole number from {least} to {largest}")
        return least

    workers = number("WORKER_NUM", 1, _MAX_WORKERS)
    settings = Settings(
        workers=workers,
        local_workers=number("LOCAL_WORKER", 1, workers) if "LOCAL_WORKER" in texts else workers,
        address=texts["MASTER_ADDR"],
        port=number("MASTER_PORT", 1, _LARGEST_PORT),
        node=number("NODE_RANK", 0, workers - 1),
        logs=texts["LOG_DIR"],
        is_shown=texts["JOIN"].lower() == "true",
        seconds=number("CLUSTER_TIME_OUT", 1, _MAX_SECONDS),
        errors=errors,
    )
    if texts["JOIN"].lower() not in ("true", "false"):
        errors.append(f"JOIN {shown(texts['JOIN'])}: must be True or False")
    if not settings.logs or "\0" in settings.logs:
        errors.append(f"LOG_DIR {shown(settings.logs)}: must be the path of a folder")
    errors += _node_errors(settings) if not errors else []
    return settings


def _node_errors(settings: Settings) -> list[str]:
    workers, local, node = settings.workers, settings.local_workers, settings.node
    if workers % local:
        return [f"LOCAL_WORKER {local}: {workers} workers cannot be divided into nodes of {local}"]
    if node >= (nodes := workers // local):
        return [f"NODE_RANK {node}: {workers} workers, {local} on each node, are on {nodes}; 0 is the first"]
    return []


def log_variables(environment: Mapping[str, str], settings: Settings, errors: list[str]) -> dict[str, str]:
    """Returns the variables of MindFormers' and CANN's logs; the suffix goes behind LOG_DIR, too."""
    suffix = environment.get("MF_LOG_SUFFIX", "")
    if "/" in suffix or not suffix.isprintable() or len(suffix) > _LONGEST_SUFFIX:
        errors.append(f"MF_LOG_SUFFIX={shown(suffix)}: must be the end of a folder's name")
    ending = f"_{suffix}" if suffix else ""
    settings.logs += ending
    output = Path.cwd() / "output"
    variables = {"LOG_MF_PATH": f"{environment.get('LOG_MF_PATH') or output / 'log'}{ending}"}
    redirect = environment.get("PLOG_REDIRECT_TO_OUTPUT") or "False"
    if redirect.lower() not in ("true", "false"):
        errors.append(f"PLOG_REDIRECT_TO_OUTPUT={shown(redirect)}: must be True or False")
    if redirect.lower() == "true":
        variables["ASCEND_PROCESS_LOG_PATH"] = f"{output / 'plog'}{ending}"
    return variables


def _resolve_port(settings: Settings, is_given: bool, notes: list[str]) -> None:
    """Resolves the port of node 0, which must be free; another is drawn where none was set."""
    if settings.node or settings.workers == 1:
        return
    if not is_own_address(settings.address) and settings.address != "localhost":
        settings.errors.append(
            f"MASTER_ADDR {shown(settings.address)}: not this machine, which NODE_RANK 0 is"
        )
        return
    error = port_error(settings.address, settings.port)
    if error is not None and is_given:
        settings.errors.append(f"MASTER_PORT {settings.port}: {error}")
    elif error is not None:
        notes.append(f"port {settings.port}: {error.partition(';')[0]}; another is taken")
        settings.drawn_port = HeldPort(settings.address)
        settings.port = settings.drawn_port.number


def _ranks(order: ExecuteOrder, settings: Settings, variables: Mapping[str, str]) -> ProgramRanks:
    """Plans a process for each worker here, and on node 0 the scheduler: the same command, as with msrun."""
    common = {**variables, "RANK_SIZE": str(settings.workers)}
    if settings.workers > 1:
        common |= {
            "MS_WORKER_NUM": str(settings.workers),
            "MS_SCHED_HOST": settings.address,
            "MS_SCHED_PORT": str(settings.port),
            "MS_TOPO_TIMEOUT": str(settings.seconds),
        }
    ranks = {}
    for local in range(settings.local_workers):
        rank = str(settings.node * settings.local_workers + local)
        roles = {"MS_ROLE": "MS_WORKER", "MS_NODE_ID": rank} if settings.workers > 1 else {}
        ranks[f"worker_{rank}"] = {**common, **roles, "RANK_ID": rank, "DEVICE_ID": str(local)}
    has_scheduler = settings.workers > 1 and settings.node == 0
    scheduler = ("scheduler", {**common, "MS_ROLE": "MS_SCHED", "RANK_ID": "0"}) if has_scheduler else None
    logs = Path.cwd() / settings.logs
    return ProgramRanks(order.words, ranks, logs, settings.is_shown, scheduler, settings.drawn_port)


def _launch_values(by_name: Mapping[str, str], settings: Settings) -> dict[str, str | int]:
    values: dict[str, str | int] = {
        "worker_num": settings.workers,
        "log_dir": str(Path.cwd() / settings.logs),
    }
    if settings.workers > settings.local_workers:
        values |= {
            "local_worker_num": settings.local_workers,
            "master_addr": settings.address,
            "master_port": settings.port,
            "node_rank": settings.node,
        }
    elif "MASTER_PORT" in by_name:
        values["master_port"] = settings.port
    return values


if __name__ == "__main__":
    main()
