"""The collective operations that sliced layers meet in."""

from __future__ import annotations

from mindspore import Tensor, mint, nn, ops

from mindbatch.parallel.topology import TensorSlice

MODEL_GROUP = "model_parallel_group"


class Identity(nn.Cell):
    """What a collective is in a group of one."""

    def construct(self, x: Tensor) -> Tensor:
        return x


class AllGatherLast(nn.Cell):
    """[T, n] on each rank -> [T, size * n], in rank order."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.gather = ops.AllGather(MODEL_GROUP)

    def construct(self, x: Tensor) -> Tensor:
        return ops.cat(mint.split(self.gather(x), x.shape[0], 0), -1)


def all_reduce(shard: TensorSlice) -> nn.Cell:
    """Sum over the model-parallel group; no operator at all in a group of one."""
    return Identity() if shard.size == 1 else ops.AllReduce(ops.ReduceOp.SUM, MODEL_GROUP)


def all_gather(shard: TensorSlice) -> nn.Cell:
    """Concatenation of the last dimension over the model-parallel group."""
    return Identity() if shard.size == 1 else AllGatherLast(shard.size)
