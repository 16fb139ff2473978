"""A model over the processes of a job: refused, or started, loaded and ready."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import weakref
from dataclasses import replace
from pathlib import Path

from mindbatch.children import command
from mindbatch.config.environment import thread_settings
from mindbatch.config.model_schema import RuntimeConfig
from mindbatch.config.model_task import ModelTaskConfig
from mindbatch.engine.build import LoadedModel, Notice, refuse_beyond_memory
from mindbatch.engine.outline import outline
from mindbatch.launch.local_ranks import LocalRanks
from mindbatch.launch.rank_environment import KEY_BYTES, RankEnvironment
from mindbatch.parallel.topology import Topology
from mindbatch.replicas import rank_main
from mindbatch.replicas.admission import RankAdmission
from mindbatch.replicas.rank_links import RankLinks
from mindbatch.replicas.remote_engine import RemoteEngine

LOCAL_HOST = "127.0.0.1"


def load_replicas(
    config: ModelTaskConfig, notice: Notice = lambda text: None, logs: Path | None = None
) -> LoadedModel:
    """Starts the rank processes of a configuration and returns an engine over them that is ready.

    logs: the folder of the ranks' logs; None is a temporary one, which goes with the processes.

    Raises:
        CheckpointError, ConfigError: as `load_model`; most of it before a process is started.
        MindBatchError: a rank could not be started, or has ended.
    """
    model, runtime, parallel = config.model, config.runtime, config.parallel
    outlined = outline(model, runtime)
    models = (outlined.facts, outlined.assistant)
    refuse_beyond_memory(model, runtime, outlined.settings, *models, copies=parallel.data_parallel)
    topology = Topology(parallel.data_parallel, parallel.model_parallel, parallel.pipeline_stage)
    admission = RankAdmission(model, _for_one_of(topology.world_size, runtime), parallel)
    notice(f"starting {topology.world_size} processes")
    key = secrets.token_bytes(KEY_BYTES)
    links = RankLinks(LOCAL_HOST, key, topology.world_size)

    def environment_of(rank: int, attempt: int) -> dict[str, str]:
        return RankEnvironment(links.address, key, rank, attempt).variables()

    ranks = LocalRanks(
        command(rank_main.main),
        environment_of,
        topology.world_size,
        topology.replica_size,
        logs or _temporary_folder(links),
    )
    engine = RemoteEngine(
        outlined.settings,
        outlined.idle_engine(),
        topology,
        links,
        ranks,
        admission,
        notice,
        config.launch.max_restarts,
    )
    try:
        engine.wait_until_ready()
    except BaseException:
        engine.close()
        raise
    cache_bytes = outlined.cache_bytes * parallel.data_parallel
    return LoadedModel(engine, outlined.facts, outlined.tokenizer, cache_bytes)


def _for_one_of(processes: int, runtime: RuntimeConfig) -> RuntimeConfig:
    """The section `runtime` of one of several processes of this machine: its cores are shared."""
    if runtime.num_threads is not None or thread_settings()["OMP_NUM_THREADS"] is not None:
        return runtime
    return replace(runtime, num_threads=max(1, len(os.sched_getaffinity(0)) // processes))


def _temporary_folder(owner: object) -> Path:
    """A folder that is removed with its owner."""
    folder = tempfile.mkdtemp(prefix="mindbatch-logs-")
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
