"""The collective operations that sliced layers meet in."""

from typing import Any

from mindspore import Tensor, mint, nn, ops
from mindspore.communication import GlobalComm, get_group_size, get_rank

from mindbatch.parallel.topology import TensorSlice, hand_over_group


class Identity(nn.Cell):
    """A collective in a group of one."""

    def construct(self, x: Tensor) -> Tensor:
        return x


class AllGatherLast(nn.Cell):
    """[T, n] on each rank -> [T, size * n], in rank order."""

    def __init__(self, size: int, group: str) -> None:
        super().__init__()
        self.size = size
        self.gather = ops.AllGather(group)

    def construct(self, x: Tensor) -> Tensor:
        return ops.cat(mint.split(self.gather(x), x.shape[0], 0), -1)


class FirstColumns(nn.Cell):
    """Output of a gather, without the padding behind `total` columns."""

    def __init__(self, gather: nn.Cell, total: int) -> None:
        super().__init__()
        self.gather = gather
        self.total = total

    def construct(self, x: Tensor) -> Tensor:
        gathered = self.gather(x)
        padding = gathered.shape[1] - self.total
        return gathered if padding == 0 else mint.split(gathered, (self.total, padding), -1)[0]


def model_group_name(first_rank: int) -> str:
    """The group in which the slices of a model meet whose first rank, in MindSpore's world, is this one."""
    return f"model_parallel_group_{first_rank}"


def all_reduce(shard: TensorSlice) -> nn.Cell:
    """Sum over the model-parallel group; no operator at all in a group of one."""
    return Identity() if shard.size == 1 else ops.AllReduce(ops.ReduceOp.SUM, _group_of(shard))


def all_gather(shard: TensorSlice, total: int) -> nn.Cell:
    """Concatenation of the last dimension over the model-parallel group: its first `total` columns."""
    if shard.size == 1:
        return Identity()
    # MindSpore gathers on a CPU in the world group only, which is all that networks on a CPU have.
    return FirstColumns(AllGatherLast(shard.size, _group_of(shard)), total)


def _group_of(shard: TensorSlice) -> str:
    """The world group where it is the ranks of one model and stage, else the one that `join_group` made."""
    if get_group_size() == shard.size:
        return str(GlobalComm.WORLD_COMM_GROUP)
    return model_group_name(get_rank() - shard.rank)


class SendHidden(nn.Cell):
    """Hand-over of a stage's last hidden states; the output is what the next stage receives."""

    def __init__(self, stage: int, tensor_rank: int) -> None:
        super().__init__(auto_prefix=False)
        self.meet = ops.AllReduce(ops.ReduceOp.SUM, hand_over_group(stage, tensor_rank))

    def construct(self, x: Tensor) -> Tensor:
        return self.meet(x)


class ReceiveHidden(nn.Cell):
    """ids [T] -> hidden states [T, width] of the same tokens, from the stage before."""

    def __init__(self, stage: int, tensor_rank: int, width: int, dtype: Any) -> None:
        super().__init__(auto_prefix=False)
        self.meet = ops.AllReduce(ops.ReduceOp.SUM, hand_over_group(stage - 1, tensor_rank))
        self.width = width
        self.dtype = dtype

    def construct(self, ids: Tensor) -> Tensor:
        return self.meet(ops.zeros((ids.shape[0], self.width), self.dtype))
