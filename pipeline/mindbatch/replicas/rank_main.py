"""The rank process: reports itself, loads its part of the model, and computes."""

import hmac
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from mindbatch.checkpoint.folders.digests import folder_digest
from mindbatch.config.environment import prepare_environment
from mindbatch.config.lora_schema import LoraConfig
from mindbatch.config.machine import memory_here, versions
from mindbatch.config.model_schema import ModelConfig, ParallelConfig, RuntimeConfig
from mindbatch.engine.engine import StepEngine
from mindbatch.engine.step import StageRunner
from mindbatch.io.errors import EXIT_FAILED, MindBatchError
from mindbatch.io.screen_text import say
from mindbatch.kernels.choice import kernels_in_use
from mindbatch.kernels.interface import Kernels
from mindbatch.launch.process_plan import RankEnvironment, take_rank_environment
from mindbatch.loading.build import (
    Notice,
    Runners,
    engine_of,
    load_runners,
    virtual_engines_of,
)
from mindbatch.loading.setup import EngineSetup, prepare
from mindbatch.parallel.connection import MessageConnection, connect
from mindbatch.parallel.topology import Topology
from mindbatch.replicas.messages import (
    COMPARED,
    FAILED,
    MODEL,
    PEERS,
    READY,
    boot_id,
    compared_folders,
    failure_fields,
)
from mindbatch.replicas.rank_links import IDLE, STEPPING, WAITING, CoordinatorLink, serve
from mindbatch.replicas.replica_steps import (
    Followers,
    LeadingRunner,
    accept_followers,
    connect_to_leader,
    follow,
    own_address,
)


@dataclass(frozen=True)
class LoadedRank:
    """Engine setup and runners of one loaded rank. topology: of its replica alone. rank: local to it."""

    topology: Topology
    rank: int
    setup: EngineSetup
    runners: Runners

    @property
    def is_leader(self) -> bool:
        return self.rank == self.topology.leader_of(0)

    @property
    def followers(self) -> list[int]:
        return [rank for rank in self.topology.ranks_of(0) if rank != self.topology.leader_of(0)]

    def engine(self, connections: Mapping[int, MessageConnection]) -> StepEngine:
        """Returns the leader's engine, whose steps all ranks compute. connections: the connections to
        followers, by local rank."""
        main: StageRunner = self.runners.model
        assistant: StageRunner | None = self.runners.assistant
        if connections:
            comparing = [rank for rank in self.followers if rank > self.rank]
            followers = Followers(connections, comparing)
            main = LeadingRunner(self.runners.model, followers)
            if self.runners.assistant is not None:
                assistant = LeadingRunner(self.runners.assistant, followers, number=1)
        make = virtual_engines_of if self.topology.pipeline_stage > 1 else engine_of
        return make(self.setup, main, assistant)

    def follow(self, leader: MessageConnection, on_step: Callable[[bool], object]) -> NoReturn:
        """Computes the steps that the leader of the replica sends; see `replica_steps.follow`."""
        follow(leader, [runner for runner in self.runners if runner is not None], on_step)


def load_rank(
    model: ModelConfig,
    runtime: RuntimeConfig,
    topology: Topology,
    rank: int,
    notice: Notice,
    secret: bytes | None = None,
    lora: LoraConfig | None = None,
    *,
    has_world: bool = True,
) -> LoadedRank:
    """Loads the part of a local rank; the processes of the whole replica must do so together.

    topology: the topology of the replica alone. notice, errors: see `load_engine`.
    secret: a secret of the processes of the replica, if all are on one host; None otherwise.
    has_world: they form a MindSpore world; without one they communicate in memory only, or through MPI.
    """

    def join(kernels: Kernels) -> None:
        if has_world:
            from mindbatch.parallel.context import initialise, join_group  # MindSpore

            initialise(runtime.device_target)
            join_group(topology, rank)
        if secret is not None or (topology.world_size > 1 and not has_world):
            notice("waiting for the other ranks")
            kernels.join_process_groups(topology, rank, secret)
            notice("loading weights 0%")

    leads = rank == topology.leader_of(0)
    setup = prepare(model, runtime, topology.part_of(rank), lora, with_tokenizer=leads)
    return LoadedRank(topology, rank, setup, load_runners(setup, notice, join))


def main() -> None:
    """Takes part in the job that the environment names; ends with the process."""
    try:
        _take_part(take_rank_environment())
    except MindBatchError as error:
        say(*error.lines)
    except OSError as error:
        say(f"the process that coordinates the job cannot be reached ({error})")
    # MindSpore's threads, and the other ranks of a collective operation, are not waited for.
    os._exit(EXIT_FAILED)


def serve_scheduler() -> None:
    """Process of MindSpore's scheduler, in which the ranks of a replica find each other."""
    from mindbatch.parallel.context import serve_as_scheduler  # MindSpore

    serve_as_scheduler()


def _take_part(environment: RankEnvironment) -> None:
    hello = {
        "rank": environment.rank,
        "attempt": environment.attempt,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "boot": boot_id(),
        "memory": memory_here(),
        "versions": versions(COMPARED),
    }
    link = CoordinatorLink(connect(environment.coordinator, environment.key), hello)
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


def _compute(link: CoordinatorLink, environment: RankEnvironment, job: Mapping[str, Any]) -> NoReturn:
    model, runtime = ModelConfig(**job["model"]), RuntimeConfig(**job["runtime"])
    parallel, lora = ParallelConfig(**job["parallel"]), LoraConfig(**job["lora"])
    prepare_environment(runtime.verbose, runtime.num_threads)
    link.send(MODEL, digests=[folder_digest(folder) for folder in compared_folders(model, lora)])
    replica = Topology(1, parallel.model_parallel, parallel.pipeline_stage, parallel.layer_counts)
    rank = environment.rank % replica.world_size
    secret = _replica_secret(environment, replica) if job["replicas_are_local"] else None
    has_world = bool(job["has_worlds"])
    loaded = load_rank(model, runtime, replica, rank, link.notice, secret, lora, has_world=has_world)
    link.send(READY, kernels=kernels_in_use(runtime.kernels, runtime.device_target))
    if loaded.is_leader:
        _lead(link, environment, loaded)
    _follow(link, environment, loaded)


def _replica_secret(environment: RankEnvironment, replica: Topology) -> bytes:
    """Derives the secret of the ranks of one attempt of a replica from the job's key."""
    which = f"{environment.rank // replica.world_size}.{environment.attempt}".encode()
    return hmac.digest(environment.key, which, "sha256")


def _lead(link: CoordinatorLink, environment: RankEnvironment, loaded: LoadedRank) -> NoReturn:
    """Serves the coordinator with the engine of this replica, once the other ranks have connected."""
    followers = {}
    if loaded.followers:
        link.begin(WAITING)
        host = own_address(environment.coordinator)
        followers = accept_followers(
            host, environment.key, loaded.followers, lambda address: link.send(PEERS, address=address)
        )
    serve(link, loaded.engine(followers))


def _follow(link: CoordinatorLink, environment: RankEnvironment, loaded: LoadedRank) -> NoReturn:
    """Computes the steps of this replica's leader, whose address the coordinator sends."""
    link.begin(WAITING)
    peers = link.receive()
    assert peers is not None
    host, port = peers.fields["address"]
    leader = connect_to_leader((host, port), environment.key, loaded.rank)
    loaded.follow(leader, lambda computes: link.begin(STEPPING if computes else IDLE))


if __name__ == "__main__":
    main()
