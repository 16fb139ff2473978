"""Token embedding over a slice of the vocabulary, and learned positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.layer import Layer
from mindbatch.layers.weights import Weights
from mindbatch.parallel.topology import TensorSlice

if TYPE_CHECKING:
    from mindspore import Tensor


class TokenEmbedding(Layer):
    """ids [T] int32 -> [T, hidden]. A rank gives zeros for ids that it does not hold; the sum is the row."""

    def __init__(self, width: int, weights: Weights, kernels: Kernels, shard: TensorSlice) -> None:
        self.weight = weights.get("embedding.weight")
        place = weights.adapted.get("embedding.weight")
        self.lookup = kernels.embedding(width) if place is None else kernels.adapted_embedding(place.shape)
        self.stored = () if place is None else place.stored
        self.first_id = shard.rank * weights.outputs["embedding.weight"] if shard.size > 1 else 0
        self.local_ids = kernels.ids_from(self.first_id)
        self.reduce = kernels.all_reduce(shard)

    def construct(self, ids: Tensor, adapters: tuple[Tensor, ...]) -> Tensor:
        if self.first_id > 0:
            ids = self.local_ids(ids)
        if len(self.stored) > 0:
            return self.reduce(self.lookup(ids, self.weight, *adapters, *self.stored))
        return self.reduce(self.lookup(ids, self.weight))


class LearnedPositions(Layer):
    """positions [T] int32 -> [T, hidden] from a table. first: the row of position 0."""

    def __init__(
        self, weights: Weights, kernels: Kernels, first: int = 0, name: str = "positions.weight"
    ) -> None:
        self.table = weights.get(name)
        self.rows = kernels.table_rows()
        self.first = first
        self.numbers = kernels.ids_from(-first)

    def construct(self, positions: Tensor) -> Tensor:
        if self.first > 0:
            positions = self.numbers(positions)
        return self.rows(positions, self.table)
