"""Self-attention of one layer over the paged cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.layer import Layer, Operation
from mindbatch.kernels.shapes import AttentionShape
from mindbatch.layers.linear import ColumnLinear, RowLinear
from mindbatch.layers.weights import Weights
from mindbatch.models.architecture import Architecture
from mindbatch.parallel.topology import TensorSlice

if TYPE_CHECKING:
    from mindspore import Parameter, Tensor


def attention_shape(arch: Architecture, layer: int, shard: TensorSlice) -> AttentionShape:
    """The heads of a layer that this rank computes; a key/value head may be on several ranks."""
    first, last = shard.bounds(arch.heads)
    first_kv, last_kv = shard.bounds(arch.kv_heads)
    return AttentionShape(
        heads=last - first,
        kv_heads=last_kv - first_kv,
        head_dim=arch.head_dim,
        scale=arch.attention_scales[layer],
        window=arch.windows[layer],
        softcap=arch.attention_cap,
        alibi=arch.alibi.of_heads(first, last) if arch.alibi else None,
    )


class HeadNorms(Layer):
    """RMS norms of query and key over all their heads, of which each rank has some: squares are summed."""

    def __init__(
        self,
        norms: tuple[Tensor, Tensor],
        shape: AttentionShape,
        arch: Architecture,
        kernels: Kernels,
        shard: TensorSlice,
    ) -> None:
        self.query_norm, self.key_norm = norms
        # A key/value head is on several ranks where there are fewer, and is summed as often.
        totals = (arch.heads * shape.head_dim, shard.size * shape.kv_heads * shape.head_dim)
        self.squares = kernels.square_sums(shape)
        self.reduce = kernels.all_reduce(shard)
        self.norm = kernels.norm_by_sums(shape, arch.norm_epsilon, totals)

    def construct(self, qkv: Tensor) -> Tensor:
        return self.norm(qkv, self.reduce(self.squares(qkv)), self.query_norm, self.key_norm)


class SelfAttention(Layer):
    """qkv projection, rotary positions (where the model has them), paged attention, output projection.

    after: takes the output [T, hidden_size] and gives what the layer adds; None where that is the output.
    norm_offset: of the norms of query and key, as of `Layers.rms_norm`.
    """

    def __init__(
        self,
        name: str,
        arch: Architecture,
        layer: int,
        weights: Weights,
        cache: tuple[Parameter, Parameter],
        kernels: Kernels,
        shard: TensorSlice,
        after: Operation | None = None,
        norm_offset: float = 0.0,
    ) -> None:
        shape = attention_shape(arch, layer, shard)
        self.qkv = ColumnLinear(f"{name}.qkv", weights, kernels)
        rotary = arch.rotary_of(layer)
        self.is_rotary = rotary is not None
        self.angles_at = 0 if rotary is None else 2 * arch.rotaries.index(rotary)
        is_interleaved = rotary is not None and rotary.is_interleaved
        in_halves = rotary is not None and rotary.positions == 2
        self.rotary = kernels.rotary(shape, arch.norm_epsilon, is_interleaved, in_halves=in_halves)
        norms = [weights.raised(f"{name}.{each}_norm.weight", norm_offset, kernels) for each in "qk"]
        self.norms = None
        if arch.norms_all_heads and shard.size > 1:
            self.norms = HeadNorms((norms[0], norms[1]), shape, arch, kernels, shard)
            norms = [weights.absent, weights.absent]
        self.query_norm, self.key_norm = norms
        self.key_cache, self.value_cache = cache
        self.attend = kernels.attention(shape)
        self.output = RowLinear(f"{name}.output", weights, kernels, shard)
        self.after = after

    def construct(
        self,
        x: Tensor,
        angles: tuple[Tensor, ...],
        step: tuple[Tensor, ...],
        adapters: tuple[Tensor, ...],
    ) -> Tensor:
        qkv = self.qkv(x, adapters)
        if self.norms is not None:
            qkv = self.norms(qkv)
        if self.is_rotary:
            cos, sin = angles[self.angles_at], angles[self.angles_at + 1]
            qkv = self.rotary(qkv, cos, sin, self.query_norm, self.key_norm)
        output = self.output(self.attend(qkv, self.key_cache, self.value_cache, *step), adapters)
        return output if self.after is None else self.after(output)


class PositionQueries(Layer):
    """Self-attention whose queries are made of the rows of a table for the tokens' positions.

    The rows [T, hidden_size] come in the place of rotary angles.
    """

    def __init__(
        self,
        name: str,
        shape: AttentionShape,
        weights: Weights,
        cache: tuple[Parameter, Parameter],
        kernels: Kernels,
        shard: TensorSlice,
    ) -> None:
        self.query = ColumnLinear(f"{name}.q", weights, kernels)
        self.keys = ColumnLinear(f"{name}.kv", weights, kernels)
        self.joined = kernels.joined()
        self.key_cache, self.value_cache = cache
        self.attend = kernels.attention(shape)
        self.output = RowLinear(f"{name}.output", weights, kernels, shard)

    def construct(
        self,
        x: Tensor,
        angles: tuple[Tensor, ...],
        step: tuple[Tensor, ...],
        adapters: tuple[Tensor, ...],
    ) -> Tensor:
        qkv = self.joined(self.query(angles[0], adapters), self.keys(x, adapters))
        return self.output(self.attend(qkv, self.key_cache, self.value_cache, *step), adapters)
