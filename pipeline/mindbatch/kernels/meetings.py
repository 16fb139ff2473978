"""The meetings of a rank with others: in memory of one host (csrc/meeting.cpp), or on several through MPI."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from mindbatch.io.errors import MindBatchError
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.parallel.shared_file import shared_file
from mindbatch.parallel.topology import Stage, TensorSlice, Topology

if TYPE_CHECKING:
    from mindbatch.kernels.mpi_meetings import MpiProcessGroups


class ProcessGroups:
    """Groups of ranks that this process has joined, by their number in it.

    hand_overs: with the fellow of a neighbouring stage, by the stage that hands over.
    functions: those that take part in them in place of the library's, by the names of these.
    """

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library
        self._slices: tuple[TensorSlice, int] | None = None
        self.hand_overs: dict[int, int] = {}
        self.functions: Mapping[str, Any] = {}

    def enter(self, topology: Topology, rank: int, secret: bytes | None) -> None:
        """Joins the rank's slice and its neighbours in the pipeline; secret: see `Kernels.meet`."""
        if secret is not None:
            join: Callable[[str, Sequence[int]], int] = partial(self._join, secret, rank)
        else:
            through_mpi = _mpi_meetings(rank)
            self.functions, join = through_mpi.functions, through_mpi.join
        shard, place = topology.slice_of(rank), topology.coordinates(rank)
        if shard.size > 1:
            first = rank - shard.rank
            self._slices = shard, join(f"{place.stage}", range(first, first + shard.size))
        # With the stage before first, so that none waits for another in a circle.
        for name, ranks in topology.hand_over_groups(rank):
            self.hand_overs[topology.coordinates(ranks[0]).stage] = join(name, ranks)

    def has_slices(self, shard: TensorSlice) -> bool:
        """True if all ranks of a slice meet so."""
        return self._slices is not None and self._slices[0] == shard

    def of_slices(self, shard: TensorSlice) -> int:
        """Returns the number of the meeting of a slice's ranks."""
        assert self._slices is not None, "ranks that do not meet here meet through MindSpore"
        assert self._slices[0] == shard
        return self._slices[1]

    def suffice(self, shard: TensorSlice, stage: Stage) -> bool:
        """True if a rank meets all that it has to do with here, or has to do with none."""
        neighbours = [sender for sender in (stage.index - 1, stage.index) if 0 <= sender < stage.count - 1]
        within = shard.size == 1 or self.has_slices(shard)
        return within and all(sender in self.hand_overs for sender in neighbours)

    def _join(self, secret: bytes, rank: int, name: str, ranks: Sequence[int]) -> int:
        shard = TensorSlice(ranks.index(rank), len(ranks))
        file = shared_file(secret, name, shard, self._library.meeting_bytes(shard.size))
        try:
            return self._library.join_meeting(file, shard.rank, shard.size)
        finally:
            os.close(file)


def _mpi_meetings(rank: int) -> MpiProcessGroups:
    try:
        from mindbatch.kernels.mpi_meetings import MpiProcessGroups
    except (ImportError, RuntimeError) as error:  # no mpi4py, or not the MPI that it was built for
        reason = str(error).splitlines()[0]
        raise MindBatchError(f"ranks on several hosts meet through mpi4py, and here: {reason}") from error
    return MpiProcessGroups(rank)
