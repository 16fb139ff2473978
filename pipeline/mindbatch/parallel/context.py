"""Setting MindSpore up for one process: graph mode and device."""

from contextlib import suppress

import mindspore

from mindbatch.io.errors import ConfigError
from mindbatch.parallel.collectives import model_group_name
from mindbatch.parallel.topology import Topology


def initialise(device_target: str) -> None:
    """Chooses graph mode and the device; before any tensor is made, unless the device is the one in use.

    Raises:
        ConfigError: this machine or this build of MindSpore does not have the device.
    """
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    try:
        mindspore.set_device(device_target)
    except (RuntimeError, ValueError) as error:
        # A program that has computed something already has its device, and MindSpore takes no word about it.
        if mindspore.get_context("device_target") != device_target:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            line = f"runtime.device_target={device_target}: not available here: {reason}"
            raise ConfigError(line) from error
    if device_target == "Ascend":
        # Kernel by kernel, with the operators' inference kernels: PagedAttention has no others, and
        # FlashAttentionScore none for layout TH.
        mindspore.set_context(jit_config={"jit_level": "O0", "infer_boost": "on"})
    if device_target == "CPU":
        # With more, MindSpore hands kernels from one spinning thread to the next, and those take the cores
        # from the kernels' own threads (measured on two cores: 1.7 times the time of a step).
        # It can be set once in a process: a second model, or a caller who chose a number, finds it taken.
        with suppress(RuntimeError):
            mindspore.runtime.dispatch_threads_num(1)


def join_group(topology: Topology, rank: int) -> None:
    """Enters the groups in which the slices and the stages of a model meet; after `initialise`."""
    if topology.world_size == 1:
        return
    from mindspore.communication import create_group, init

    init()
    size = topology.model_parallel
    if 1 < size < topology.world_size:
        first = rank - rank % size
        create_group(model_group_name(first), [*range(first, first + size)])
    # Every stage enters the group with the stage before first, so that none waits for another in a circle.
    for name, ranks in topology.hand_over_groups(rank):
        create_group(name, ranks)
