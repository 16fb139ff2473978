"""Makes the layers that a model's file assembles, bound to one rank's weights, kernels and cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mindbatch.kernels.distances import distance_bias
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.layer import Layer, Operation
from mindbatch.kernels.routing import Routing
from mindbatch.kernels.shapes import ExpertsShape
from mindbatch.layers.attention import PositionQueries, SelfAttention, attention_shape
from mindbatch.layers.decoder import (
    Angles,
    Block,
    ByPosition,
    Decoder,
    Network,
    NormedSumBlock,
    NormOutput,
    ParallelBlock,
    QueryBlock,
    ResidualSum,
    StageInput,
    StageOutput,
    SumOutput,
    TokenInput,
)
from mindbatch.layers.embedding import LearnedPositions, TokenEmbedding
from mindbatch.layers.encoder_decoder import (
    CrossAttention,
    CrossBlock,
    CrossCache,
    DistanceAttention,
    Encoder,
    EncoderDecoder,
)
from mindbatch.layers.experts import Experts
from mindbatch.layers.latent_attention import LatentAttention
from mindbatch.layers.linear import ColumnLinear, VocabularyHead
from mindbatch.layers.mlp import Mlp
from mindbatch.layers.norm import AddNorm, Norm
from mindbatch.layers.weights import Weights
from mindbatch.models.architecture import Architecture
from mindbatch.parallel.topology import Stage, TensorSlice

if TYPE_CHECKING:
    from mindspore import Parameter, Tensor


class ChangedRows(Layer):
    """Rows of an embedding, times a factor or with a norm."""

    def __init__(self, rows: Operation, change: Operation) -> None:
        self.rows = rows
        self.change = change

    def construct(self, ids: Tensor, adapters: tuple[Tensor, ...]) -> Tensor:
        return self.change(self.rows(ids, adapters))


class ProjectedRows(Layer):
    """Rows of an embedding through a linear layer."""

    def __init__(self, rows: Operation, projection: Operation) -> None:
        self.rows = rows
        self.projection = projection

    def construct(self, ids: Tensor, adapters: tuple[Tensor, ...]) -> Tensor:
        return self.projection(self.rows(ids, adapters), adapters)


@dataclass(frozen=True)
class Layers:
    """The layers of one rank, each found by the name of its parameters.

    caches: key and value cache of each block of the stage.
    """

    arch: Architecture
    weights: Weights
    kernels: Kernels
    shard: TensorSlice
    caches: Sequence[tuple[Parameter, Parameter]]
    stage: Stage

    def embedding(self, factor: float = 1.0) -> Operation:
        """Rows of the token embedding times a factor."""
        rows = TokenEmbedding(self.arch.hidden_size, self.weights, self.kernels, self.shard)
        scaled = self.scaled(factor)
        return rows if scaled is None else ChangedRows(rows, scaled)

    def projected_embedding(self) -> Operation:
        """Rows of a narrower token embedding times a matrix."""
        rows = TokenEmbedding(self.arch.embedding_size, self.weights, self.kernels, self.shard)
        return ProjectedRows(rows, ColumnLinear("embedding.project", self.weights, self.kernels))

    def normed_embedding(self, norm: str) -> Operation:
        """The layer norm of rows of the token embedding."""
        return ChangedRows(self.embedding(), self.plain_layer_norm(norm))

    def scaled(self, factor: float) -> Operation | None:
        """Takes x [T, width] and gives x * factor; None for a factor of 1."""
        return None if factor == 1.0 else self.kernels.scaled(factor)

    def learned_positions(self, first: int = 0) -> Operation:
        """Rows of a table, to be added to the embedding. first: the row of the first token."""
        return LearnedPositions(self.weights, self.kernels, first)

    def rms_norm(self, name: str, offset: float = 0.0) -> Operation:
        """x / rms(x) * (offset + weight), after the residual sum."""
        weight = self.weights.raised(f"{name}.weight", offset, self.kernels)
        operator = self.kernels.add_norm(self.arch.norm_epsilon, centred=False)
        return AddNorm(weight, self.weights.optional(f"{name}.bias"), operator)

    def plain_rms_norm(self, name: str, offset: float = 0.0) -> Operation:
        """The same of x [T, hidden_size] alone."""
        weight = self.weights.raised(f"{name}.weight", offset, self.kernels)
        operator = self.kernels.norm(self.arch.norm_epsilon, centred=False)
        return Norm(weight, self.weights.absent, operator)

    def layer_norm(self, name: str, has_bias: bool = True) -> Operation:
        """(x - mean(x)) / std(x) * weight + bias, after the residual sum."""
        weight = self.weights.get(f"{name}.weight")
        bias = self.weights.get(f"{name}.bias") if has_bias else self.kernels.zeros(self.arch.hidden_size)
        return AddNorm(weight, bias, self.kernels.add_norm(self.arch.norm_epsilon, centred=True))

    def residual_sum(self, index: int | None = None) -> Operation:
        """What stands in the place of a norm that a block has not: the residual sum alone.

        index: of the block, where it stands in front of attention.
        """
        return ResidualSum(None if index == self.stage.layers.start else self.kernels.sum())

    def plain_layer_norm(self, name: str) -> Operation:
        """The same of x [T, hidden_size] alone."""
        weight, bias = self.weights.get(f"{name}.weight"), self.weights.get(f"{name}.bias")
        return Norm(weight, bias, self.kernels.norm(self.arch.norm_epsilon, centred=True))

    def attention(
        self, name: str, index: int, after: Operation | None = None, norm_offset: float = 0.0
    ) -> Operation:
        """Self-attention of block `index`, with rotary positions where the architecture has them.

        after: of the output, before it is added. norm_offset: of query's and key's norms, as of `rms_norm`.
        """
        cache = self.caches[index - self.stage.layers.start]
        of_rank = (self.weights, cache, self.kernels, self.shard)
        return SelfAttention(name, self.arch, index, *of_rank, after, norm_offset)

    def latent_attention(self, name: str, index: int) -> Operation:
        """The same over latents."""
        cache = self.caches[index - self.stage.layers.start]
        return LatentAttention(name, self.arch, index, self.weights, cache, self.kernels, self.shard)

    def query_block(self, name: str, index: int) -> QueryBlock:
        """Of PanGu: a norm of all that came before, then a block whose queries are of positions."""
        cache = self.caches[index - self.stage.layers.start]
        shape = attention_shape(self.arch, index, self.shard)
        of_rank = (self.weights, cache, self.kernels, self.shard)
        return QueryBlock(
            self.layer_norm(f"{name}.first_norm"),
            self.plain_layer_norm(f"{name}.attention_norm"),
            PositionQueries(f"{name}.attention", shape, *of_rank),
            self.layer_norm(f"{name}.mlp_norm"),
            self.mlp(f"{name}.mlp"),
        )

    def mlp(self, name: str) -> Operation:
        """down(act(up(x)))."""
        return self._mlp(name, gated=False)

    def gated_mlp(self, name: str, after: Operation | None = None) -> Operation:
        """down(act(gate(x)) * up(x)); `up` holds both, the gate first. after: as of `attention`."""
        return self._mlp(name, True, after)

    def _mlp(self, name: str, gated: bool, after: Operation | None = None) -> Operation:
        activation = self.kernels.activation(self.arch.activation, gated)
        return Mlp(name, activation, self.weights, self.kernels, self.shard, after)

    def experts(self, name: str, shared: Sequence[Operation] = ()) -> Operation:
        """The weighted sum of the experts that each row chooses. shared: added for every row."""
        experts = self.arch.experts
        assert experts is not None, "the architecture has no experts"
        return self._experts(name, experts.routing, experts.intermediate_size, shared)

    def gated_expert(self, name: str, inner: int) -> Operation:
        """One expert of every row, weighted with the sigmoid of its router's logit."""
        return self._experts(name, Routing(1, 1, is_sigmoid=True, is_normalised=False), inner)

    def _experts(
        self, name: str, routing: Routing, inner: int, shared: Sequence[Operation] = ()
    ) -> Operation:
        first, last = self.shard.bounds(inner)
        shape = ExpertsShape(routing, last - first, self.arch.activation)
        return Experts(name, shape, self.weights, self.kernels, self.shard, shared)

    def block(
        self, attention_norm: Operation, attention: Operation, mlp_norm: Operation, mlp: Operation
    ) -> Block:
        """x + attention(norm(x)), then x + mlp(norm(x)); added to norm(x) where the architecture says so."""
        if not self.arch.adds_normed:
            return Block(attention_norm, attention, mlp_norm, mlp)
        scaled = self.scaled(self.arch.normed_factor)
        return NormedSumBlock(attention_norm, attention, mlp_norm, mlp, scaled)

    def parallel_block(
        self,
        attention_norm: Operation,
        attention: Operation,
        mlp: Operation,
        mlp_norm: Operation | None = None,
    ) -> ParallelBlock:
        """x + attention(norm(x)) + mlp(norm(x)), of one norm or, with mlp_norm, of one each."""
        return ParallelBlock(attention_norm, attention, mlp_norm, mlp, self.kernels.sum())

    def encoder_block(self, names: str, index: int) -> Block:
        """Of an encoder: attention in both directions, with a bias by distance, in a cache that is lent."""
        name, arch = f"{names}.{index}", self.arch
        assert arch.encoder is not None
        mlp = self._mlp(f"{name}.mlp", arch.encoder.is_gated)
        attention = self._distance_attention(f"{name}.attention", "encoder", 0)
        return Block(
            self.rms_norm(f"{name}.attention_norm"), attention, self.rms_norm(f"{name}.mlp_norm"), mlp
        )

    def cross_block(self, names: str, index: int) -> CrossBlock:
        """Of an encoder's decoder: attention with a bias by distance, cross-attention, MLP."""
        name, arch = f"{names}.{index}", self.arch
        assert arch.encoder is not None
        shape = attention_shape(arch, index, self.shard)
        of_rank = (self.weights, self.caches[index], self.kernels, self.shard)
        attention = self._distance_attention(f"{name}.attention", "decoder", index)
        return CrossBlock(
            (self.rms_norm(f"{name}.attention_norm"), attention),
            (self.rms_norm(f"{name}.cross_norm"), CrossAttention(f"{name}.cross", shape, *of_rank)),
            (self.rms_norm(f"{name}.mlp_norm"), self._mlp(f"{name}.mlp", arch.encoder.is_gated)),
        )

    def _distance_attention(self, name: str, stack: str, index: int) -> DistanceAttention:
        arch = self.arch
        assert arch.encoder is not None
        first, last = self.shard.bounds(arch.heads)
        table = self.kernels.floats(self.weights.get(f"positions.{stack}"))[:, first:last]
        bias = distance_bias(table, arch.encoder.farthest, causal=stack == "decoder")
        shape = attention_shape(arch, index, self.shard)
        of_rank = (self.weights, self.caches[index], self.kernels, self.shard)
        return DistanceAttention(name, shape, bias, *of_rank, is_of_encoder=stack == "encoder")

    def encoder_decoder(
        self, encoder_block: Callable[[int], Operation], block: Callable[[int], Operation]
    ) -> EncoderDecoder:
        """An encoder and a decoder over one token embedding, and the head; of whole models alone."""
        arch, absent = self.arch, self.kernels.absent()
        assert arch.encoder is not None
        assert self.stage.is_first
        assert self.stage.is_last

        def stack(make: Callable[[int], Operation], layers: int, norm: str) -> Decoder:
            begin, end = TokenInput(self.embedding(), None, absent), NormOutput(self.rms_norm(norm))
            return Decoder(begin, None, [make(index) for index in range(layers)], end)

        shape = attention_shape(arch, 0, self.shard)
        caches = [
            CrossCache(f"layers.{index}.cross", shape, self.weights, self.caches[index], self.kernels)
            for index in range(arch.num_layers)
        ]
        encoder = Encoder(stack(encoder_block, arch.encoder.num_layers, "encoder.norm"), caches)
        return EncoderDecoder(encoder, stack(block, arch.num_layers, "norm"), self._head())

    def network(
        self,
        embedding: Callable[[], Operation],
        block: Callable[[Layers, int], Operation],
        norm: Callable[[], Operation] | None,
        positions: Callable[[], Operation] | None = None,
        by_position: str | None = None,
    ) -> Network:
        """Embedding, blocks, last norm, and the head: the embedding where the architecture ties them.

        Each is made only where it belongs to this rank's stage.

        block: makes the layer of an index. norm: None where none follows the last block.
        positions: what is added to the embedding; the rotary angles are the architecture's.
        by_position: the table whose rows the last block gets in their place.
        """
        stage, rank, kernels = self.stage, self.shard.rank, self.kernels
        begin: Operation
        if stage.is_first:
            begin = TokenInput(embedding(), None if positions is None else positions(), kernels.absent())
        else:
            receive = kernels.receive_hidden(stage.index, rank, self.arch.hidden_size)
            begin = StageInput(receive, kernels.absent())
        blocks = [block(self, index) for index in stage.layers]
        end: Operation
        if stage.is_last:
            end = SumOutput(kernels.sum()) if norm is None else NormOutput(norm())
        else:
            end = StageOutput(kernels.sum(), kernels.send_hidden(stage.index, rank))
        angles = self._angles()
        if by_position is not None and stage.is_last:
            angles = ByPosition(LearnedPositions(self.weights, kernels, name=by_position))
        if not stage.is_last:
            return Network(Decoder(begin, angles, blocks, end), None)
        narrow = self.arch.embedding_size
        after = ColumnLinear("head.project", self.weights, kernels) if narrow else None
        return Network(Decoder(begin, angles, blocks, end, after), self._head())

    def _angles(self) -> Operation | None:
        """cos and sin of each of the architecture's rotary embeddings; None where it has none."""
        rotaries = self.arch.rotaries
        parts = [self.kernels.rotary_angles(each.inverse_frequencies, each.scale) for each in rotaries]
        return Angles(parts) if len(parts) > 1 else next(iter(parts), None)

    def _head(self) -> Operation:
        name = "embedding.weight" if self.arch.tied else "head.weight"
        cap = self.arch.logits_cap
        after = self.kernels.capped(cap) if cap else self.scaled(self.arch.logits_factor)
        return VocabularyHead(name, self.arch.vocab_size, self.weights, self.kernels, self.shard, after)
