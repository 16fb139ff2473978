"""MindSpore in one process of several: its device, its groups, and their collective operations."""

from contextlib import suppress
from typing import Any

import mindspore
from mindspore import Tensor, mint, nn, ops
from mindspore.communication import GlobalComm, create_group, get_group_size, get_rank, init

from mindbatch.io.errors import ConfigError
from mindbatch.parallel.topology import TensorSlice, Topology, stage_link


class Identity(nn.Cell):
    """A collective in a group of one."""

    def construct(self, x: Tensor) -> Tensor:
        return x


class AllGatherLast(nn.Cell):
    """[T, n] on each rank -> [T, total], in rank order, without the padding behind them."""

    def __init__(self, size: int, group: str, total: int) -> None:
        super().__init__()
        self.size, self.total = size, total
        self.gather = ops.AllGather(group)

    def construct(self, x: Tensor) -> Tensor:
        gathered = ops.cat(mint.split(self.gather(x), x.shape[0], 0), -1)
        padding = gathered.shape[1] - self.total
        return gathered if padding == 0 else mint.split(gathered, (self.total, padding), -1)[0]


def model_group_name(first_rank: int) -> str:
    """Names the group of a model's slices whose first rank, in MindSpore's world, is this one."""
    return f"model_parallel_group_{first_rank}"


def all_reduce(shard: TensorSlice) -> nn.Cell:
    """Sum over the model-parallel group; no operator at all in a group of one."""
    return Identity() if shard.size == 1 else ops.AllReduce(ops.ReduceOp.SUM, _group_of(shard))


def all_gather(shard: TensorSlice, total: int) -> nn.Cell:
    """Concatenation of the last dimension over the model-parallel group: its first `total` columns."""
    if shard.size == 1:
        return Identity()
    # MindSpore gathers on a CPU in the world group only, which is all that networks on a CPU have.
    return AllGatherLast(shard.size, _group_of(shard), total)


def _group_of(shard: TensorSlice) -> str:
    """The world group where it is the ranks of one model and stage, else the one that `join_group` made."""
    if get_group_size() == shard.size:
        return str(GlobalComm.WORLD_COMM_GROUP)
    return model_group_name(get_rank() - shard.rank)


class SendHidden(nn.Cell):
    """Sends a stage's last hidden states; the output is what the next stage receives."""

    def __init__(self, stage: int, tensor_rank: int) -> None:
        super().__init__(auto_prefix=False)
        self.reduce = ops.AllReduce(ops.ReduceOp.SUM, stage_link(stage, tensor_rank))

    def construct(self, x: Tensor) -> Tensor:
        return self.reduce(x)


class ReceiveHidden(nn.Cell):
    """ids [T] -> hidden states [T, width] of the same tokens, from the stage before."""

    def __init__(self, stage: int, tensor_rank: int, width: int, dtype: Any) -> None:
        super().__init__(auto_prefix=False)
        self.reduce = ops.AllReduce(ops.ReduceOp.SUM, stage_link(stage - 1, tensor_rank))
        self.width = width
        self.dtype = dtype

    def construct(self, ids: Tensor) -> Tensor:
        return self.reduce(ops.zeros((ids.shape[0], self.width), self.dtype))


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
            instead = "; runtime=cpu runs on the processor" if device_target == "Ascend" else ""
            raise ConfigError(
                f"runtime.device_target={device_target}: not available here{instead}; MindSpore: {reason}"
            ) from error
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
    """Joins MindSpore's groups of the slices and the stages of a model; after `initialise`."""
    if topology.world_size == 1:
        return
    init()
    size = topology.model_parallel
    if 1 < size < topology.world_size:
        first = rank - rank % size
        create_group(model_group_name(first), [*range(first, first + size)])
    # Every stage joins the group with the stage before first, so that none waits for another in a circle.
    for name, ranks in topology.stage_links(rank):
        create_group(name, ranks)


def serve_as_scheduler() -> None:
    """Serves the ranks that the environment names until they have ended; see `world_variables`."""
    initialise("CPU")
    init()
