"""The section `launch`: how the processes of a run are started, and checks of its keys."""

import ipaddress
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mindbatch.config.error_log import shown
from mindbatch.config.model_schema import ParallelConfig
from mindbatch.config.paths import input_file_error, resolved, run_folder_error
from mindbatch.config.schema import excludes, needs, option
from mindbatch.fields import kinds as kind
from mindbatch.io.installation import is_installed, missing

LAUNCHERS = ("dynamic", "rank_table", "srun", "ray")
_RAY_FINDS_NODES = (excludes("launch.launcher", "ray"),)
LARGEST_PORT = 65535
_LONGEST_HOST_NAME = 253
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?", re.ASCII)


@dataclass
class LaunchConfig:
    """How the processes of a run are started, if there are several."""

    launcher: str = option(
        "dynamic",
        "what starts them; dynamic: mindbatch itself; srun: Slurm; ray: a Ray cluster",
        kind.choice(*LAUNCHERS),
    )
    worker_num: int | None = option(None, "processes on all nodes; null: as parallel.* needs", kind.count(1))
    local_worker_num: int | None = option(
        None,
        "processes on each node; null: all, or what the rank table or Slurm says",
        kind.count(1),
        needs=_RAY_FINDS_NODES,
    )
    master_addr: str | None = option(
        None,
        "address of node 0, where the others find it; null: this machine, or Slurm's first node",
        needs=_RAY_FINDS_NODES,
    )
    master_port: int | None = option(
        None,
        "port of node 0, to which the other nodes connect; null: a free one, if there is one node",
        kind.count(1),
        needs=_RAY_FINDS_NODES,
    )
    node_rank: int | None = option(
        None,
        "number of this node; null: 0, or what Slurm says; other nodes than 0 serve node 0",
        kind.count(),
        needs=_RAY_FINDS_NODES,
    )
    rank_table: str | None = option(
        None,
        "JSON file that assigns a device of a server to each rank",
        is_path=True,
        needs=_RAY_FINDS_NODES,
    )
    ray_address: str | None = option(
        None,
        "host:port of a Ray cluster; null: RAY_ADDRESS, or a cluster on this machine for this run",
        needs=(needs("launch.launcher", "ray", remedy="set launch=ray"),),
    )
    log_dir: str | None = option(
        None,
        "folder for a log of each process; null: logs in output.dir, or a temporary folder",
        is_path=True,
    )
    hang_seconds: int = option(
        60, "seconds without a sign of life after which a process counts as hung", kind.count(1)
    )
    max_restarts: int = option(0, "how often failed processes are restarted", kind.count())
    dry_run: bool = option(
        False, "print the commands and environment of each node, and start nothing", needs=_RAY_FINDS_NODES
    )


USER_KEYS = "MINDBATCH_USER_KEYS"
"""The variable in which a script lists its own names of keys, for messages: `worker_num=RANK_SIZE,...`."""


def user_key(key: str, default: str = "") -> str:
    """Names a key of this section as the user gave it, for messages."""
    pairs = (pair.partition("=") for pair in os.environ.get(USER_KEYS, "").split(","))
    names = {name: written for name, _, written in pairs}
    return names.get(key, default or f"launch.{key}")


def world_size_of(parallel: ParallelConfig) -> int:
    """Multiplies the numbers of replicas, tensor-parallel ranks and stages."""
    return math.prod((parallel.data_parallel, parallel.model_parallel, parallel.pipeline_stage))


def has_ranks(launch: LaunchConfig, parallel: ParallelConfig) -> bool:
    """True if the model runs in rank processes instead of this one: in several, or in one that Ray starts."""
    return world_size_of(parallel) > 1 or launch.launcher == "ray"


def resolve_launch_paths(launch: LaunchConfig, errors: list[str]) -> None:
    """Resolves ~ in the paths; appends the errors of the paths to `errors`."""
    table_error = input_file_error("a rank table")
    launch.rank_table = resolved(user_key("rank_table"), launch.rank_table, table_error, errors)
    launch.log_dir = resolved(user_key("log_dir"), launch.log_dir, run_folder_error, errors)


def launch_errors(launch: LaunchConfig, parallel: ParallelConfig) -> Iterator[str]:
    """Yields the errors of the keys, each alone and with the number of processes."""
    size = world_size_of(parallel)
    if size < 1:  # an error of its own key
        return
    if launch.worker_num is not None and launch.worker_num != size:
        name = user_key("worker_num")
        other = "remove" if name == "launch.worker_num" else "give another"
        yield (
            f"{name}={launch.worker_num}: parallel.data_parallel={parallel.data_parallel} x "
            f"parallel.model_parallel={parallel.model_parallel} x "
            f"parallel.pipeline_stage={parallel.pipeline_stage} make {size} "
            f"process{'es' * (size > 1)}; set these to what is meant, or {other} {name}"
        )
    else:
        yield from _node_errors(launch, size)
    yield from _address_errors(launch)
    yield from _ray_errors(launch)
    if launch.launcher == "rank_table" and launch.rank_table is None:
        yield (
            "launch.rank_table: must be given with launch=rank_table: the JSON file of mindbatch rank-table "
            "or hccl_tools.py"
        )


def _node_errors(launch: LaunchConfig, size: int) -> Iterator[str]:
    """Checks that the processes fill whole nodes, and that this node is one of them."""
    local, node = launch.local_worker_num, launch.node_rank
    if local is None or local < 1:
        return
    if size % local:
        allowed = ", ".join(str(number) for number in range(1, size + 1) if size % number == 0)
        yield (
            f"{user_key('local_worker_num')}={local}: {size} processes cannot be divided into nodes of "
            f"{local}; allowed: {allowed}"
        )
        return
    nodes = size // local
    if node is not None and node >= nodes:
        yield (
            f"{user_key('node_rank')}={node}: {size} processes, {local} on each node, are on "
            f"{nodes} node{'s' * (nodes > 1)}; allowed: {'0' if nodes == 1 else f'0 to {nodes - 1}'}"
        )
    if nodes > 1 and launch.launcher != "srun":  # Slurm says both
        for name, value in (("master_addr", launch.master_addr), ("master_port", launch.master_port)):
            if value is None:
                yield f"launch.{name}: must be given where there are {nodes} nodes, the same on each of them"


def _address_errors(launch: LaunchConfig) -> Iterator[str]:
    if launch.master_addr is not None and not is_host(launch.master_addr):
        name = user_key("master_addr")
        yield f"{name}={shown(launch.master_addr)}: must be a host name or an IP address"
    if launch.master_port is not None and launch.master_port > LARGEST_PORT:
        yield f"{user_key('master_port')}={launch.master_port}: must be from 1 to {LARGEST_PORT}"


def _ray_errors(launch: LaunchConfig) -> Iterator[str]:
    if launch.launcher != "ray":
        return
    if not is_installed("ray"):
        yield f"launch=ray: {missing('ray')}"
    if launch.ray_address is not None and not is_ray_address(launch.ray_address):
        yield (
            f"launch.ray_address={shown(launch.ray_address)}: must be host:port of the cluster's head, as "
            "ray start prints it, or auto"
        )


def is_ray_address(text: str) -> bool:
    """True if `text` is an address of a cluster's head, which ray:// is not: it lacks placement groups."""
    host, _, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) <= LARGEST_PORT
    return text == "auto" or (is_port and is_host(host))


def is_host(text: str) -> bool:
    """True if `text` can be a host name or an IP address, without characters that a shell interprets."""
    if len(text) <= _LONGEST_HOST_NAME and _HOST_NAME.fullmatch(text):
        return True
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return "%" not in text
