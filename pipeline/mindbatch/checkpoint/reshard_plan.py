"""Which boxes of which source rank make each target rank's tensors, and the proof that none is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from mindbatch.checkpoint.boxes import Box, Pair, Shape, difference, intersection, merged, moved
from mindbatch.checkpoint.faults import did_you_mean, raise_if_any, shown
from mindbatch.checkpoint.placement import Piece, Placement, Placements, Share, placement_faults
from mindbatch.checkpoint.plan_proof import Copy, copy_faults


@dataclass(frozen=True)
class TensorPlan:
    """How a tensor of a target rank is made.

    shape: of the rank's tensor. copies: in order of `target`. padding: boxes of it that are zero.
    """

    name: str
    rank: int
    shape: Shape
    copies: tuple[Copy, ...]
    padding: tuple[Box, ...] = ()


@dataclass(frozen=True)
class ReshardPlan:
    """All tensors of all target ranks, tensor by tensor, and the placements that they follow."""

    tensors: tuple[TensorPlan, ...]
    source: Placements
    target: Placements

    def of_rank(self, rank: int) -> tuple[TensorPlan, ...]:
        """The tensors of one target rank."""
        return tuple(tensor for tensor in self.tensors if tensor.rank == rank)

    def prove(self) -> tuple[TensorPlan, ...]:
        """Shows that every element of every target tensor comes from one source element, the right one.

        It judges the copies by coordinates and exact counts; how they were found plays no part. Also shown:
        the placements of both sides are sound, and the target loses no element of any tensor.

        Returns the tensors that have padding, whose elements come from nowhere and are zero.

        Raises:
            CheckpointError: the first faults, each with the tensor and the box.
        """
        raise_if_any([f"tensor {shown(name)}: {fault}" for name, fault in self._faults()])
        return tuple(tensor for tensor in self.tensors if tensor.padding)

    def _faults(self) -> Iterator[tuple[str, str]]:
        judge = _Judge()
        for name in self.target:
            for fault in judge.placements(self.source[name], self.target[name]):
                yield name, fault
        made: dict[tuple[str, int], TensorPlan] = {}
        for tensor in self.tensors:
            if made.setdefault((tensor.name, tensor.rank), tensor) is not tensor:
                yield tensor.name, f"target rank {tensor.rank}: is made twice"
        ...
