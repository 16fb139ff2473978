"""A model over the processes of a job: refused, or started, loaded and ready."""

import os
import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

from mindbatch.config.environment import thread_settings
from mindbatch.config.machine import MachineMemory, thread_notes, usable_cores
from mindbatch.config.model_schema import ParallelConfig, RuntimeConfig
from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.io.errors import MindBatchError
from mindbatch.io.screen_text import say, say_once
from mindbatch.kernels.choice import kernel_notes
from mindbatch.launch.job_ranks import JobRanks, LocalProcesses
from mindbatch.launch.launcher_environment import launcher_watch
from mindbatch.launch.preflight import refuse_apart, set_up, shares_memory, with_rendezvous
from mindbatch.launch.process_log import made_folder, temporary_folder
from mindbatch.launch.process_plan import JobSetup
from mindbatch.loading.build import LoadedEngine, Notice, dry_run_engine
from mindbatch.loading.memory_check import MemoryDemand, refuse_beyond_memory
from mindbatch.loading.providers import OpenedFolder
from mindbatch.loading.setup import EngineSetup, prepare
from mindbatch.parallel.connection import RankMessage
from mindbatch.parallel.topology import Topology
from mindbatch.replicas import rank_main
from mindbatch.replicas.agent import LEFT
from mindbatch.replicas.messages import RankAdmission
from mindbatch.replicas.ray_cluster import RayCluster
from mindbatch.replicas.remote_engine import RemoteEngine, job_settings
from mindbatch.replicas.remote_nodes import RemoteNode
from mindbatch.replicas.shared_engine import FollowingEngine, SharingEngine
from mindbatch.replicas.start import (
    connection_to_coordinator,
    local_processes,
    serve_coordinator,
    start_ranks,
)

_SECONDS_TO_END = 5.0
"""For the ranks of a copy to end when it has left."""


def load_replicas(
    config: ModelTaskConfig,
    notice: Notice = lambda text: None,
    logs: Path | None = None,
    opened: OpenedFolder | None = None,
) -> LoadedEngine:
    """Starts the rank processes of a configuration and returns an engine over them that is ready.

    opened: the part of the first rank, where it was opened before.
    logs: the folder of the ranks' logs; None is a temporary one, which goes with the processes.
    Where a launcher runs a script as several copies, each starts its ranks, and the engine of another copy
    than the first has what that one's computes.

    Raises:
        CheckpointError, ConfigError: as `prepare` and `load_engine`; most of it before a process is started.
        MindBatchError: a rank could not be started, or has ended.
    """
    model, runtime = config.model, config.runtime
    topology = topology_of(config.parallel)
    job: JobSetup = config.job or set_up_job(config)
    refuse_apart(job, model, runtime, config.launch.max_restarts)
    setup = prepare(model, runtime, topology.part_of(0), config.lora, opened=opened)
    if not job.is_coordinator:
        return _following(config, job, setup, notice, logs)

    here = _ranks_here(job)
    admission = _admission(config, job, setup, here)
    say(*thread_notes(runtime.num_threads, len(here)), *setup.adapters.warnings)
    say_once(*kernel_notes(runtime.kernels, runtime.device_target))
    notice(f"starting {topology.world_size} processes")
    local = node_processes(config, job, admission, logs)
    cluster = _ray_cluster(config, job, local.logs) if job.launcher == "ray" else None
    links, ranks = start_ranks(job, local, notice, cluster)
    remote = RemoteEngine(
        setup.settings,
        dry_run_engine(setup),
        topology,
        links,
        ranks,
        admission,
        notice,
        config.launch.max_restarts,
        config.launch.hang_seconds,
    )
    engine = _shared(remote, config, job, ranks)
    try:
        engine.wait_until_ready()
    except BaseException:
        engine.close()
        raise
    cache_bytes = setup.cache_bytes * topology.world_size
    kernels = ", ".join(sorted(remote.kernels))
    return LoadedEngine(engine, setup.tokenizer, cache_bytes, setup.adapters.known, kernels)


def _admission(
    config: ModelTaskConfig, job: JobSetup, setup: EngineSetup, here: Collection[int]
) -> RankAdmission:
    """Makes what ranks are admitted by. here: those of this machine, whose memory is checked at once."""
    topology = topology_of(config.parallel)

    def check_memory(ranks: Collection[int], machine: MachineMemory | None = None) -> None:
        refuse_beyond_memory(MemoryDemand.of(setup, [*map(topology.coordinates, ranks)]), machine)

    if here:
        check_memory(here)
    return RankAdmission(
        config.model,
        _for_one_of(len(here), config.runtime),
        config.parallel,
        config.lora,
        check_memory,
        replicas_are_local=shares_memory(job),
        has_worlds=job.has_worlds,
    )


def set_up_job(config: ModelTaskConfig) -> JobSetup:
    """Resolves how the processes of a configuration are to be started; errors: see `set_up`."""
    job = set_up(config.launch, topology_of(config.parallel), os.environ)
    return with_rendezvous(job, config.model, config.runtime)


def _shared(
    remote: RemoteEngine, config: ModelTaskConfig, job: JobSetup, ranks: JobRanks
) -> SharingEngine | RemoteEngine:
    """Returns the engine, which shares its results if a script runs as several copies."""
    copies = [node for node in ranks.nodes if isinstance(node, RemoteNode) and node.follows]
    if not copies or job.copy is None:
        return remote
    return SharingEngine(remote, copies, _described(config), launcher_watch(job.copy))


def _following(
    config: ModelTaskConfig, job: JobSetup, setup: EngineSetup, notice: Notice, logs: Path | None
) -> LoadedEngine:
    """Returns the model of another copy of a script, once the first has loaded it."""
    shared: SimpleQueue[RankMessage | None] = SimpleQueue()
    connection, key = connection_to_coordinator(job, notice)

    def serve() -> None:
        with suppress(MindBatchError):  # `shared` tells
            serve_coordinator(job, node_processes(config, job, connection, logs), connection, key, shared)

    def end() -> None:
        with suppress(OSError):
            connection.send(LEFT)
        connection.close()  # by which the agent ends its ranks
        serving.join(_SECONDS_TO_END)

    serving = threading.Thread(target=serve, name="agent", daemon=True)
    serving.start()
    settings = job_settings(setup.settings, job.topology)
    watch = launcher_watch(job.copy) if job.copy is not None else lambda: None
    engine = FollowingEngine(settings, dry_run_engine(setup), shared, end, watch)
    try:
        engine.wait_until_ready(notice, _described(config))
    except BaseException:
        engine.close()
        raise
    return LoadedEngine(engine, setup.tokenizer, 0, setup.adapters.known, streams=False)


def _described(config: ModelTaskConfig) -> str:
    """Returns the arguments that must be the same in all copies of a script."""
    return repr((config.model, config.parallel, config.lora))


def _ranks_here(job: JobSetup) -> range:
    """Returns the ranks that share this host's memory and cores; none in a Ray cluster, where they are
    unknown."""
    if job.launcher == "ray":
        return range(0)
    return range(job.topology.world_size) if job.is_on_one_host else job.ranks


def _ray_cluster(config: ModelTaskConfig, job: JobSetup, folder: Path) -> RayCluster:
    """Returns the Ray cluster of a configuration, in which no rank is started yet. Raises what `RayCluster`
    raises.

    Ray counts runtime.num_threads processors for each rank, and an NPU where the model runs on one.
    """
    resources = {"CPU": float(config.runtime.num_threads or 1)}
    if config.runtime.device_target == "Ascend":
        resources["NPU"] = 1.0
    logs = None if config.launch.log_dir is None else Path(config.launch.log_dir)
    return RayCluster(job.ray_address, job.topology, resources, rank_main.main, folder / "ray.log", logs)


def _for_one_of(processes: int, runtime: RuntimeConfig) -> RuntimeConfig:
    """Returns the section `runtime` of one of several processes of this machine: its cores are shared.

    processes: 0 in a Ray cluster, which gives a rank one core unless more are requested.
    """
    if runtime.num_threads is None and processes == 0:
        return replace(runtime, num_threads=1)
    if runtime.num_threads is not None or thread_settings()["OMP_NUM_THREADS"] is not None:
        return runtime
    return replace(runtime, num_threads=max(1, usable_cores() // processes))


def topology_of(parallel: ParallelConfig) -> Topology:
    sizes = (parallel.data_parallel, parallel.model_parallel, parallel.pipeline_stage)
    return Topology(*sizes, parallel.layer_counts)


def node_processes(
    config: ModelTaskConfig, job: JobSetup, owner: object, folder: Path | None = None
) -> LocalProcesses:
    """Returns the processes of this node, none of which is started yet.

    Their logs are in launch.log_dir, `folder`, or a temporary one that goes with its owner.

    Raises:
        ConfigError: launch.log_dir cannot be made.
    """
    if config.launch.log_dir is not None:
        folder = Path(config.launch.log_dir)
    logs = temporary_folder(owner) if folder is None else made_folder(folder)
    return local_processes(job, logs, shown=config.runtime.verbose)
