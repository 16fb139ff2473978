"""Settings of an adapter: rank and scaling of each module, and the modules that it targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mindbatch.checkpoint.lora.module_pattern import ModulePattern
from mindbatch.checkpoint.lora.targets import Targets

Patterns = Sequence[tuple[ModulePattern, float]]
"""Numbers by the end of a module's name; the first that matches counts."""


@dataclass(frozen=True)
class LoraSettings:
    """The settings of an adapter.

    ranks, alphas: for some modules others than `rank` and `alpha`. uniform_scaling: that of all
    modules, where alpha does not say it. has_magnitudes, has_biases: DoRA, lora_bias. ties: the head follows
    the embedding. base: the model that it was trained on. start: the initialisation, where that changes the
    base weights.
    """

    rank: int
    alpha: float
    rank_stabilised: bool = False
    fan_in_fan_out: bool = False
    targets: Targets = Targets()
    uniform_scaling: float | None = None
    ranks: Patterns = ()
    alphas: Patterns = ()
    has_magnitudes: bool = False
    has_biases: bool = False
    ties: bool = False
    base: str | None = None
    start: str | None = None

    @property
    def scaling(self) -> float:
        """The factor on B @ A of modules without a rank or alpha of their own."""
        return self._scaling(self.rank, self.alpha)

    def rank_of(self, module: str) -> int:
        """The rank of a module. ValueError when an expression takes too long to be matched."""
        return int(_first(self.ranks, module, self.rank))

    def scaling_of(self, module: str) -> float:
        """The scaling of a module. ValueError as of `rank_of`."""
        return self._scaling(self.rank_of(module), _first(self.alphas, module, self.alpha))

    def _scaling(self, rank: int, alpha: float) -> float:
        """alpha / rank, or alpha / sqrt(rank) (rsLoRA, Kalajdzievski 2023)."""
        if self.uniform_scaling is not None:
            return self.uniform_scaling
        return alpha / (math.sqrt(rank) if self.rank_stabilised else rank)


def _first(patterns: Patterns, module: str, otherwise: float) -> float:
    return next((value for pattern, value in patterns if pattern.matches_end(module)), otherwise)
