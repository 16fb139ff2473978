"""Where the ranks of a replica meet: in memory that they share, in a MindSpore world, or in both."""

from __future__ import annotations

from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.kernels.native_library import find_library
from mindbatch.launch.preflight import JobSetup


def shares_memory(setup: JobSetup) -> bool:
    """Whether the ranks of each replica are on one host."""
    layout = setup.place.layout
    has_whole_replicas = layout.local_size % layout.topology.replica_size == 0
    return setup.is_on_one_host or (setup.launcher != "ray" and has_whole_replicas)


def needs_world(setup: JobSetup, model: ModelConfig, runtime: RuntimeConfig) -> bool:
    """Whether the ranks of each replica must form a MindSpore world, which takes seconds.

    Ranks of one host with the C++ kernels need none: those do all that ranks do together. MindFormers'
    networks ask MindSpore for their groups, whatever computes; on other hosts the C++ kernels may be missing.

    Raises:
        ConfigError: the C++ kernels were built from other sources.
    """
    if setup.place.layout.topology.replica_size == 1:
        return False
    has_kernels = runtime.device_target == "CPU" and runtime.kernels != "reference"
    if not (setup.is_on_one_host and has_kernels and model.provider == "native"):
        return True
    return find_library() is None
