"""Rank process: it says who it is, loads its part of the model, and computes."""

from __future__ import annotations

import hmac
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from mindbatch.config.machine import lines, memory_here
from mindbatch.io.errors import EXIT_FAILED, MindBatchError
from mindbatch.io.screen_text import say
from mindbatch.launch.rank_environment import RankEnvironment, take_rank_environment
from mindbatch.parallel.topology import Topology
from mindbatch.replicas.connection import connect
from mindbatch.replicas.front_link import IDLE, STEPPING, WAITING, FrontLink
from mindbatch.replicas.messages import FAILED, MODEL, PEERS, READY, failure_fields
from mindbatch.replicas.peers import accept_followers, connect_to_leader, own_address
from mindbatch.replicas.versions import versions

if TYPE_CHECKING:  # most is imported when the front has answered
    from mindbatch.replicas.loaded_rank import LoadedRank

_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""By which machines of one name are told apart."""


def main() -> None:
    """Takes part in the job that the environment names; ends with the process."""
    code = EXIT_FAILED
    try:
        environment = take_rank_environment()
        _take_part(environment)
    except MindBatchError as error:
        say(*error.faults)
    except OSError as error:
        say(f"the process that coordinates the job cannot be reached ({error})")
    # MindSpore's threads, and the other ranks of a collective operation, are not waited for.
    os._exit(code)


def _take_part(environment: RankEnvironment) -> None:
    hello = {
        "rank": environment.rank,
        "attempt": environment.attempt,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "boot": "".join(lines(_BOOT)),
        "memory": memory_here(),
        "versions": versions(),
    }
    link = FrontLink(connect(environment.front, environment.key), hello)
    job = link.receive()
    assert job is not None
    try:
        _compute(link, environment, job.fields)
    except Exception as error:
        if not isinstance(error, MindBatchError):
            import traceback

            traceback.print_exc()  # to the log
        link.send(FAILED, **failure_fields(error))
        raise MindBatchError(f"rank {environment.rank}: {error}") from error


def _compute(link: FrontLink, environment: RankEnvironment, job: Mapping[str, Any]) -> NoReturn:
    """Loads this rank's part of the model that the job names; then leads its replica, or follows."""
    from mindbatch.checkpoint.folders.folder_digest import folder_digest
    from mindbatch.config.environment import prepare_environment
    from mindbatch.config.lora_schema import LoraConfig
    from mindbatch.config.model_schema import ModelConfig, ParallelConfig, RuntimeConfig
    from mindbatch.kernels.choice import kernels_in_use
    from mindbatch.replicas.admission import compared_folders
    from mindbatch.replicas.loaded_rank import load_rank

    model, runtime = ModelConfig(**job["model"]), RuntimeConfig(**job["runtime"])
    parallel, lora = ParallelConfig(**job["parallel"]), LoraConfig(**job["lora"])
    prepare_environment(runtime.verbose, runtime.num_threads)
    link.send(MODEL, digests=[folder_digest(folder) for folder in compared_folders(model, lora)])
    replica = Topology(1, parallel.model_parallel, parallel.pipeline_stage, parallel.layer_counts)
    rank = environment.rank % replica.world_size
    meeting = _meeting_of(environment, replica) if job["replicas_are_local"] else None
    has_world = bool(job["has_worlds"])
    loaded = load_rank(model, runtime, replica, rank, link.notice, meeting, lora, has_world=has_world)
    link.send(READY, kernels=kernels_in_use(runtime.kernels, runtime.device_target))
    if loaded.is_leader:
        _lead(link, environment, loaded)
    _follow(link, environment, loaded)


def _meeting_of(environment: RankEnvironment, replica: Topology) -> bytes:
    """A secret of the ranks of one attempt of a replica: who has it has, or was given, the job's key."""
    which = f"{environment.rank // replica.world_size}.{environment.attempt}".encode()
    return hmac.digest(environment.key, which, "sha256")


def _lead(link: FrontLink, environment: RankEnvironment, loaded: LoadedRank) -> NoReturn:
    """Serves the front with the engine of this replica, once the other ranks are there."""
    from mindbatch.replicas.announcing_runner import AnnouncingRunner
    from mindbatch.replicas.serving import serve

    followers = {}
    if loaded.followers:
        link.begin(WAITING)
        host = own_address(environment.front)
        followers = accept_followers(
            host, environment.key, loaded.followers, lambda address: link.send(PEERS, address=address)
        )
    serve(link, loaded.engine(followers, lambda runner: AnnouncingRunner(runner, link)))


def _follow(link: FrontLink, environment: RankEnvironment, loaded: LoadedRank) -> NoReturn:
    """Computes what the leader of this replica says; the front tells where that is."""
    link.begin(WAITING)
    peers = link.receive()
    assert peers is not None
    host, port = peers.fields["address"]
    leader = connect_to_leader((host, port), environment.key, loaded.rank)
    loaded.follower(leader).follow(lambda computes: link.begin(STEPPING if computes else IDLE))


if __name__ == "__main__":
    main()
