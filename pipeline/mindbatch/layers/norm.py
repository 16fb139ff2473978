"""Norms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mindbatch.kernels.operations.dense import group_norm, norm
from mindbatch.layers.rank import Module, Rank
from mindbatch.models.tensor_spec import Part, Sharding, TensorSpec


class RmsNorm(Module):
    """x [T, width] -> x / rms(x) * (offset + weight)."""

    vectors: tuple[str, ...] = ("weight",)
    is_centred = False

    def __init__(self, source: str, width: int, epsilon: float, offset: float = 0.0) -> None:
        self.source, self.width, self.epsilon, self.offset = source, width, epsilon, offset

    def parameters(self, name: str = "") -> Iterator[TensorSpec]:
        """Declares the vectors, which every rank has."""
        for vector in self.vectors:
            yield TensorSpec(f"{name}.{vector}", (Part(f"{self.source}.{vector}", self.width),))

    def bind(self, name: str, rank: Rank) -> None:
        self.weight = rank.add_offset(f"{name}.weight", self.offset)
        self.bias = rank.weights.get(f"{name}.bias") if "bias" in self.vectors else None

    def forward(self, x: Any) -> Any:
        return norm(x, self.weight, self.bias, epsilon=self.epsilon, centred=self.is_centred)


class GroupNorm(RmsNorm):
    """Each `width` numbers of a row / their rms * weight."""

    def forward(self, x: Any) -> Any:
        return group_norm(x, self.weight, epsilon=self.epsilon)


class UnitNorm(Module):
    """x / rms(x), for those that take a norm's weight."""

    def __init__(self, width: int) -> None:
        self.width = width

    def bind(self, name: str, rank: Rank) -> None:
        """Makes a weight of ones."""
        self.weight = rank.kernels.add_offset(rank.kernels.zeros(self.width), 1.0)


class LayerNorm(RmsNorm):
    """x [T, width] -> (x - mean(x)) / std(x) * weight + bias."""

    vectors = ("weight", "bias")
    is_centred = True


class PlainLayerNorm(RmsNorm):
    """Layer norm without a bias."""

    is_centred = True

    def bind(self, name: str, rank: Rank) -> None:
        """Takes the weight, and a bias of zeros: the kernels take a norm with a bias for a centred one."""
        super().bind(name, rank)
        self.bias = rank.kernels.zeros(self.width)


class AllHeadsNorm(Module):
    """An RMS norm over all heads together, of which a rank has the part that its heads have."""

    def __init__(self, source: str, heads: int, head_dim: int, *, is_shared: bool = False) -> None:
        self.part = Part(f"{source}.weight", heads * head_dim, unit=head_dim, is_shared=is_shared)

    def parameters(self, name: str = "") -> Iterator[TensorSpec]:
        yield TensorSpec(f"{name}.weight", (self.part,), Sharding.OUTPUTS)

    def bind(self, name: str, rank: Rank) -> None:
        """Takes the rank's part of the vector."""
        self.weight = rank.weights.get(f"{name}.weight")
