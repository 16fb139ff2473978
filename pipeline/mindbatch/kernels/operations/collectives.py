"""Collectives of the ranks of one model; NumPy computes one rank of one."""

from typing import Any

from mindbatch.kernels.arrays import FloatArray
from mindbatch.kernels.recording import operation
from mindbatch.kernels.step import IntArray
from mindbatch.parallel.topology import TensorSlice


@operation()
def all_reduce(x: FloatArray, *, shard: TensorSlice) -> FloatArray:
    """The sum over the ranks of the slice; [T, width] on each."""
    return _alone(x)


@operation(lambda x, shard, total: total)
def all_gather(x: FloatArray, *, shard: TensorSlice, total: int) -> FloatArray:
    """x [T, width] on each rank of the slice -> [T, total], side by side; the rest is padding."""
    return _alone(x)


@operation()
def send_hidden(x: FloatArray, *, stage: int, tensor_rank: int) -> FloatArray:
    """x [T, width], handed over by a rank of a stage to its fellow of the next one."""
    return _alone(x)


@operation(lambda ids, stage, tensor_rank, width: width)
def receive_hidden(ids: IntArray, *, stage: int, tensor_rank: int, width: int) -> FloatArray:
    """ids [T] -> [T, width], what the fellow of the stage before hands over."""
    return _alone(ids)


def _alone(x: Any) -> Any:
    raise NotImplementedError("NumPy computes one rank of one")
