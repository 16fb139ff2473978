"""Where the ranks of a replica meet: in memory that they share, or in a MindSpore world."""

from __future__ import annotations

from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.errors import ConfigError
from mindbatch.kernels.native_library import find_library, library_text
from mindbatch.launch.preflight import JobSetup


def shares_memory(setup: JobSetup) -> bool:
    """Whether the ranks of each replica are on one host."""
    layout = setup.place.layout
    has_whole_replicas = layout.local_size % layout.topology.replica_size == 0
    return setup.is_on_one_host or (setup.launcher != "ray" and has_whole_replicas)


def needs_world(setup: JobSetup, model: ModelConfig, runtime: RuntimeConfig) -> bool:
    """Whether the ranks of each replica must form a MindSpore world, which takes seconds.

    The C++ kernels of a CPU need none: those do all that ranks do together. MindFormers' networks ask
    MindSpore for their groups, whatever computes.
    """
    if setup.place.layout.topology.replica_size == 1:
        return False
    return runtime.device_target != "CPU" or model.provider != "native"


def refuse_apart(setup: JobSetup, model: ModelConfig, runtime: RuntimeConfig) -> None:
    """Refuses ranks of a replica that would have nothing to meet in.

    Raises:
        ConfigError: they are on several hosts, or there are no C++ kernels.
    """
    topology = setup.place.layout.topology
    if topology.replica_size == 1 or needs_world(setup, model, runtime):
        return
    if not shares_memory(setup):
        sizes = f"model_parallel={topology.model_parallel}, pipeline_stage={topology.pipeline_stage}"
        raise ConfigError(
            f"parallel.{sizes}: on a CPU the ranks of a replica meet in the memory of one host, and here "
            "they may be on several; allowed: replicas that are whole on each host "
            f"(launch.local_worker_num a multiple of {topology.replica_size}), model.quantization=int8 for a "
            "model that is smaller, and Ascend"
        )
    if find_library() is None:
        raise ConfigError(f"parallel.model_parallel, pipeline_stage: the kernels are {library_text()}")
