"""Norms."""

from typing import Any

from mindbatch.kernels.operations.dense import group_norm, norm
from mindbatch.layers.rank import Module, Rank, declared
from mindbatch.models.tensor_spec import Part, Sharding


class RmsNorm(Module):
    """x [T, width] -> x / rms(x) * (offset + weight)."""

    is_centred = False
    has_bias = False

    def __init__(self, source: str, width: int, epsilon: float, offset: float = 0.0) -> None:
        self.width, self.epsilon, self.offset = width, epsilon, offset
        self.weight = declared(Part(f"{source}.weight", width))
        self.bias = declared(Part(f"{source}.bias", width)) if self.has_bias else None

    def bind(self, name: str, rank: Rank) -> None:
        """Adds the offset here, once, and in float32, as the model itself computes it.

        Half precision would lose what the weight adds to the offset.
        """
        super().bind(name, rank)
        if self.offset:
            self.weight = rank.kernels.add_offset(self.weight, self.offset)

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
        self.weight = rank.kernels.add_offset(rank.kernels.zeros(self.width), 1.0)


class LayerNorm(RmsNorm):
    """x [T, width] -> (x - mean(x)) / std(x) * weight + bias."""

    is_centred = True
    has_bias = True


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
        part = Part(f"{source}.weight", heads * head_dim, unit=head_dim, is_shared=is_shared)
        self.weight = declared(part, sharding=Sharding.OUTPUTS)
