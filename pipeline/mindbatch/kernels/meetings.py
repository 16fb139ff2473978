"""The meetings of a rank with others of its host, in memory that they share (csrc/meeting.cpp)."""

from __future__ import annotations

import os

from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.parallel.shared_file import shared_file
from mindbatch.parallel.topology import Stage, TensorSlice, Topology, hand_over_group


class Meetings:
    """Those that this process has entered, by their number in it.

    hand_overs: with the fellow of a neighbouring stage, by the stage that hands over.
    """

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library
        self._slices: tuple[TensorSlice, int] | None = None
        self.hand_overs: dict[int, int] = {}

    def enter(self, topology: Topology, rank: int, secret: bytes) -> None:
        """See `Kernels.meet`."""
        shard, place = topology.slice_of(rank), topology.coordinates(rank)
        if shard.size > 1:
            self._slices = shard, self._join(secret, f"{place.stage}", shard)
        # With the stage before first, so that none waits for another in a circle.
        for sender in (place.stage - 1, place.stage):
            if 0 <= sender < topology.pipeline_stage - 1:
                end = TensorSlice(place.stage - sender, 2)
                group = hand_over_group(sender, place.tensor_rank)
                self.hand_overs[sender] = self._join(secret, group, end)

    def has_slices(self, shard: TensorSlice) -> bool:
        """Whether all ranks of a slice meet so."""
        return self._slices is not None and self._slices[0] == shard

    def of_slices(self, shard: TensorSlice) -> int:
        """That of all ranks of a slice."""
        assert self._slices is not None, "ranks that do not meet here meet through MindSpore"
        assert self._slices[0] == shard
        return self._slices[1]

    def suffice(self, shard: TensorSlice, stage: Stage) -> bool:
        """Whether a rank meets all that it has to do with here, or has to do with none."""
        neighbours = [sender for sender in (stage.index - 1, stage.index) if 0 <= sender < stage.count - 1]
        within = shard.size == 1 or self.has_slices(shard)
        return within and all(sender in self.hand_overs for sender in neighbours)

    def _join(self, secret: bytes, name: str, shard: TensorSlice) -> int:
        file = shared_file(secret, name, shard, self._library.meeting_bytes(shard.size))
        try:
            return self._library.join_meeting(file, shard.rank, shard.size)
        finally:
            os.close(file)
