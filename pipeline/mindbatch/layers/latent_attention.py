"""Self-attention over latents: what is cached of a token is one vector for the keys and values of all heads.

Source: DeepSeek-AI, "DeepSeek-V2" (2024), multi-head latent attention with the up-projections absorbed: the
query meets the latent itself, and each head's values are made of the weighted sum of latents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.layer import Layer, Operation
from mindbatch.kernels.shapes import HeadProductsShape
from mindbatch.layers.attention import attention_shape
from mindbatch.layers.linear import ColumnLinear, RowLinear
from mindbatch.layers.norm import Norm
from mindbatch.layers.weights import Weights
from mindbatch.models.architecture import Architecture, Latent
from mindbatch.parallel.topology import TensorSlice

if TYPE_CHECKING:
    from mindspore import Parameter, Tensor


class CompressedQueries(Layer):
    """Queries from a normed vector of their own."""

    def __init__(self, name: str, norm: Operation, weights: Weights, kernels: Kernels) -> None:
        self.down = ColumnLinear(f"{name}.q_a", weights, kernels)
        self.norm = norm
        self.up = ColumnLinear(f"{name}.q_b", weights, kernels)

    def construct(self, x: Tensor, adapters: tuple[Tensor, ...]) -> Tensor:
        return self.up(self.norm(self.down(x, adapters)), adapters)


class LatentAttention(Layer):
    """x [T, hidden_size] -> what the layer adds.

    queries: of the heads of this rank, first their parts that meet keys by the latent, then those that are
        rotated. The one key/value head is [rotated, latent], and on every rank.
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
    ) -> None:
        latent, shape = arch.latent, attention_shape(arch, layer, shard)
        assert latent is not None, "the architecture has no latents"
        if latent.query_rank:
            norm = _norm(f"{name}.q_norm", latent, weights, kernels)
            self.queries: Operation = CompressedQueries(name, norm, weights, kernels)
        else:
            self.queries = ColumnLinear(f"{name}.q", weights, kernels)
        self.keys = ColumnLinear(f"{name}.kv_a", weights, kernels)
        self.latents = kernels.columns(0, latent.rank)
        self.norm = _norm(f"{name}.kv_norm", latent, weights, kernels)
        self.into, self.out_of = weights.get(f"{name}.kv_b.absorb"), weights.get(f"{name}.kv_b.expand")
        of_latents = HeadProductsShape(shape.heads, latent.plain, 0, latent.plain, latent.rank)
        self.absorb = kernels.head_products(of_latents)
        self.heads = kernels.latent_heads(shape.heads, latent.rotated)
        rotary = arch.rotary
        assert rotary is not None, "a part of each head is rotated"
        self.rotary = kernels.rotary(shape, arch.norm_epsilon, rotary.is_interleaved)
        self.absent = weights.absent
        self.key_cache, self.value_cache = cache
        self.attend = kernels.attention(shape)
        of_values = HeadProductsShape(shape.heads, shape.head_dim, latent.rotated, latent.rank, latent.value)
        self.expand = kernels.head_products(of_values)
        self.output = RowLinear(f"{name}.output", weights, kernels, shard)

    def construct(
        self,
        x: Tensor,
        angles: tuple[Tensor, ...],
        step: tuple[Tensor, ...],
        adapters: tuple[Tensor, ...],
    ) -> Tensor:
        queries, keys = self.queries(x, adapters), self.keys(x, adapters)
        latents = self.norm(self.latents(keys))
        qkv = self.heads(queries, self.absorb(queries, self.into), keys, latents)
        qkv = self.rotary(qkv, angles[0], angles[1], self.absent, self.absent)
        seen = self.attend(qkv, self.key_cache, self.value_cache, *step)
        return self.output(self.expand(seen, self.out_of), adapters)


def _norm(name: str, latent: Latent, weights: Weights, kernels: Kernels) -> Norm:
    return Norm(
        weights.get(f"{name}.weight"), weights.absent, kernels.norm(latent.norm_epsilon, centred=False)
    )
