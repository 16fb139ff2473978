"""Bindings of one rank's layers: its parameters by name, its cache, and the other ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mindbatch.kernels.adapters import AdaptedParameter
from mindbatch.kernels.interface import Kernels
from mindbatch.parallel.topology import WHOLE, Stage, TensorSlice


@dataclass(frozen=True)
class Weights:
    """Loaded parameters, as kernels keep them, with the number of outputs of each matrix.

    (A packed shape does not tell.) adapted: what adapters have for each parameter that any of them touches.
    """

    parameters: Mapping[str, Any]
    outputs: Mapping[str, int]
    adapted: Mapping[str, AdaptedParameter] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """A parameter that the model's tree promises.

        Raises:
            KeyError: the loader did not make it, a defect of the tree.
        """
        return self.parameters[name]


@dataclass(frozen=True)
class Rank:
    """One rank of a model in memory.

    caches: keys and values of each of the stage's layers.
    """

    weights: Weights
    kernels: Kernels
    caches: Sequence[tuple[Any, Any]]
    stage: Stage
    shard: TensorSlice = WHOLE

    def cache_of(self, layer: int) -> tuple[Any, Any]:
        """Keys and values of a layer."""
        return self.caches[layer - self.stage.layers.start]

    def add_offset(self, name: str, offset: float) -> Any:
        """The parameter plus an offset.

        The offset is added here, once, and in float32, as the model itself computes it: half precision would
        lose what the weight adds to the offset.
        """
        weight = self.weights.get(name)
        return self.kernels.add_offset(weight, offset) if offset else weight
