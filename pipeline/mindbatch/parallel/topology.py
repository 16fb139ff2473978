"""Where a process stands in the dp x mp grid, and which part of a dimension is its own."""

from __future__ import annotations

from dataclasses import dataclass


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


@dataclass(frozen=True)
class Topology:
    """data_parallel x model_parallel processes; the ranks of one model-parallel group are neighbours."""

    data_parallel: int = 1
    model_parallel: int = 1

    @property
    def world_size(self) -> int:
        return self.data_parallel * self.model_parallel

    def coordinates(self, rank: int) -> tuple[int, int]:
        """(data-parallel index, model-parallel index) of a global rank."""
        return divmod(rank, self.model_parallel)

    def slice_of(self, rank: int) -> TensorSlice:
        """The slice of every layer that a global rank holds."""
        return TensorSlice(self.coordinates(rank)[1], self.model_parallel)
