"""Hand-over of hidden states to the next pipeline stage: a sum over both ranks, one of which adds zeros.

On a CPU MindSpore has no Send and Receive, and sums in any group; x + 0 is x. The same graph runs on Ascend.
"""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, nn, ops
from mindspore.communication import create_group

from mindbatch.parallel.topology import Topology, hand_over_group


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


def join_neighbours(topology: Topology, rank: int) -> None:
    """Enters the groups of a local rank; after MindSpore's `init`, in a world of one replica.

    Every stage enters the group with the stage before first, so that none waits for another in a circle.
    """
    for name, ranks in topology.hand_over_groups(rank):
        create_group(name, ranks)
