"""Coordinates of a process among dp x pp x mp others, and the layers and shards that it holds."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class TensorSlice:
    """One rank of a model-parallel group of `size` ranks."""

    rank: int = 0
    size: int = 1

    def bounds(self, total: int, unit: int = 1) -> tuple[int, int]:
        """Half-open range of `total` elements that this rank holds, cut at multiples of `unit`.

        When there are fewer units than ranks (key/value heads of grouped attention), a unit is held by
        size / units neighbouring ranks.

        Raises:
            ValueError: the units do not divide over the ranks, or the ranks over the units.
        """
        units, rest = divmod(total, unit)
        if rest or (units % self.size and self.size % units):
            raise ValueError(f"{total} elements in units of {unit} cannot be cut over {self.size} ranks")
        if units >= self.size:
            share = units // self.size * unit
            return self.rank * share, (self.rank + 1) * share
        unit_index = self.rank * units // self.size
        return unit_index * unit, (unit_index + 1) * unit


WHOLE = TensorSlice()


class RankCoordinates(NamedTuple):
    """A rank's replica, its stage there, and its rank among the tensor-parallel ones."""

    replica: int
    stage: int
    tensor_rank: int


DeviceMap = str | tuple[int, ...] | None
"""How layers are divided over stages: see `ParallelConfig.device_map`."""


@dataclass(frozen=True)
class RankPart:
    """A rank's part of a model: the shard of every layer of one of its stages."""

    shard: TensorSlice = WHOLE
    stage: int = 0
    stages: int = 1
    device_map: DeviceMap = None

    @property
    def is_last(self) -> bool:
        """True if this rank has the head, and so the logits."""
        return self.stage == self.stages - 1


WHOLE_MODEL = RankPart()


@dataclass(frozen=True)
class Topology:
    """data_parallel replicas of pipeline_stage x model_parallel processes.

    A global rank is replica * replica_size + local rank; the local rank is stage * model_parallel + tensor
    rank. So the ranks of a replica are neighbours, and the local rank is the N of the rank_N folder that
    `mindbatch reshard` makes for it.
    """

    data_parallel: int = 1
    model_parallel: int = 1
    pipeline_stage: int = 1
    device_map: DeviceMap = None

    @property
    def replica_size(self) -> int:
        """Ranks that hold one model together."""
        return self.model_parallel * self.pipeline_stage

    @property
    def world_size(self) -> int:
        return self.data_parallel * self.replica_size

    def coordinates(self, rank: int) -> RankCoordinates:
        """Splits a global rank into replica, stage and tensor-parallel rank."""
        replica, local = divmod(rank, self.replica_size)
        return RankCoordinates(replica, *divmod(local, self.model_parallel))

    def ranks_of(self, replica: int) -> range:
        """The global ranks of a replica, in order of their local ranks."""
        return range(replica * self.replica_size, (replica + 1) * self.replica_size)

    def leader_of(self, replica: int) -> int:
        """The global rank that runs a replica's engine: the first of the last stage, which has the logits."""
        return self.ranks_of(replica).stop - self.model_parallel

    def slice_of(self, rank: int) -> TensorSlice:
        return TensorSlice(self.coordinates(rank).tensor_rank, self.model_parallel)

    def part_of(self, rank: int) -> RankPart:
        stage = self.coordinates(rank).stage
        return RankPart(self.slice_of(rank), stage, self.pipeline_stage, self.device_map)

    def stage_links(self, rank: int) -> list[tuple[str, list[int]]]:
        """Names and ranks of a local rank's groups with its peers: the stage before, then the one after."""
        _, stage, tensor_rank = self.coordinates(rank)
        senders = [sender for sender in (stage - 1, stage) if 0 <= sender < self.pipeline_stage - 1]
        first_ranks = [sender * self.model_parallel + tensor_rank for sender in senders]
        return [
            (stage_link(sender, tensor_rank), [first, first + self.model_parallel])
            for sender, first in zip(senders, first_ranks, strict=True)
        ]


def stage_link(sender: int, tensor_rank: int) -> str:
    """Names the group in which a rank of a stage sends to its peer in the next one."""
    return f"stage_link_{sender}_{tensor_rank}"


@dataclass(frozen=True)
class Stage:
    """Successive layers of a model; the first stage has the embedding, too, the last one norm and head."""

    layers: range
    index: int = 0
    count: int = 1

    def __str__(self) -> str:
        first, last = self.layers.start, self.layers.stop - 1
        return f"stage {self.index} of {self.count}, layers {first} to {last}"

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.count - 1


def stage_layers(num_layers: int, stage: int, stages: int) -> range:
    """The layers of a stage: as many to each stage, one more to the first ones if some are over."""
    share, over = divmod(num_layers, stages)
    first = stage * share + min(stage, over)
    return range(first, first + share + (stage < over))
