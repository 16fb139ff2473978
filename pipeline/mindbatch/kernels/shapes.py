"""The sizes that layers and kernels agree on: of attention, experts, products of heads, the cache."""

from __future__ import annotations

from dataclasses import dataclass

from mindbatch.kernels.alibi import Alibi
from mindbatch.kernels.routing import Routing


@dataclass(frozen=True)
class AttentionShape:
    """The slice of attention that one rank computes.

    window: number of latest positions a token sees, its own included; 0 for all.
    scale: the factor on query-key products.
    softcap: scores become softcap * tanh(score / softcap); with 0 they stay.
    alibi: what is added to the products then, of the heads of this rank.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    alibi: Alibi | None = None
    softcap: float = 0.0

    @property
    def qkv_width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim


@dataclass(frozen=True)
class ExpertsShape:
    """The slice of a layer of experts that one rank computes.

    inner: width of each expert on this rank, between its two products. activation: of the gate.
    """

    routing: Routing
    inner: int
    activation: str


@dataclass(frozen=True)
class HeadProductsShape:
    """Products of each head's numbers with a matrix of its own.

    Head h reads `inputs` numbers of a row from h * stride + first on.
    """

    heads: int
    stride: int
    first: int
    inputs: int
    outputs: int


@dataclass(frozen=True)
class CacheGeometry:
    """Size of the paged cache. One block more than num_blocks is allocated: padding is written there."""

    num_blocks: int
    block_size: int
