"""How a pipeline stage hands hidden states to the next one: a sum over both ranks, one of which adds zeros.

On a CPU MindSpore has no Send and Receive, and sums in any group; x + 0 is x. The same graph runs on Ascend.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mindspore import Tensor, nn, ops
from mindspore.communication import create_group

from mindbatch.parallel.topology import Topology


class SendHidden(nn.Cell):
    """What the last layer of a stage leaves, to the next stage; the output is what that stage receives."""

    def __init__(self, stage: int, tensor_rank: int) -> None:
        super().__init__(auto_prefix=False)
        self.meet = ops.AllReduce(ops.ReduceOp.SUM, group_of(stage, tensor_rank))

    def construct(self, update: Tensor, residual: Tensor) -> Tensor:
        return self.meet(update + residual)


class ReceiveHidden(nn.Cell):
    """ids [T] -> hidden states [T, width] of the same tokens, from the stage before."""

    def __init__(self, stage: int, tensor_rank: int, width: int, dtype: Any) -> None:
        super().__init__(auto_prefix=False)
        self.meet = ops.AllReduce(ops.ReduceOp.SUM, group_of(stage - 1, tensor_rank))
        self.width = width
        self.dtype = dtype

    def construct(self, ids: Tensor, positions: Tensor) -> Tensor:
        return self.meet(ops.zeros((ids.shape[0], self.width), self.dtype))


def group_of(sender: int, tensor_rank: int) -> str:
    """The name of the group in which a stage hands over to the next one."""
    return f"hand_over_{sender}_{tensor_rank}"


def pairs_of(topology: Topology, rank: int) -> Iterator[tuple[str, list[int]]]:
    """The groups of a local rank, with their local ranks: from the stage before, then to the next one."""
    place = topology.coordinates(rank)
    for sender in (place.stage - 1, place.stage):
        if 0 <= sender < topology.pipeline_stage - 1:
            first = sender * topology.model_parallel + place.tensor_rank
            yield group_of(sender, place.tensor_rank), [first, first + topology.model_parallel]


def join_pairs(topology: Topology, rank: int) -> None:
    """Enters the groups of a local rank; after MindSpore's `init`, in a world of one replica.

    Every stage enters the group with the stage before first, so that none waits for another in a circle.
    """
    for name, ranks in pairs_of(topology, rank):
        create_group(name, ranks)
