"""The decoder that every supported model is: embedding, layers, last norm, and the head beside it."""

from __future__ import annotations

from mindspore import Tensor, nn

from mindbatch.cache.paged import PagedCache
from mindbatch.kernels.interface import Kernels
from mindbatch.layers.attention import SelfAttention
from mindbatch.layers.embedding import LearnedPositions, TokenEmbedding
from mindbatch.layers.linear import VocabularyHead
from mindbatch.layers.mlp import Mlp
from mindbatch.layers.norm import AddNorm
from mindbatch.layers.rotary import NoAngles, RotaryAngles
from mindbatch.layers.weights import Weights
from mindbatch.models.architecture import Architecture
from mindbatch.parallel.topology import TensorSlice


class DecoderLayer(nn.Cell):
    """x + attention(norm(x)), then x + mlp(norm(x)), with the last sum left to the next layer's norm."""

    def __init__(
        self,
        arch: Architecture,
        layer: int,
        weights: Weights,
        cache: PagedCache,
        kernels: Kernels,
        piece: TensorSlice,
    ) -> None:
        super().__init__(auto_prefix=False)
        name = f"layers.{layer}"
        self.attention_norm = AddNorm(f"{name}.attention_norm", arch, weights, kernels)
        self.attention = SelfAttention(
            f"{name}.attention", arch, layer, weights, cache.layer(layer), kernels, piece
        )
        self.mlp_norm = AddNorm(f"{name}.mlp_norm", arch, weights, kernels)
        self.mlp = Mlp(f"{name}.mlp", arch, weights, kernels, piece)

    def construct(
        self,
        update: Tensor,
        residual: Tensor,
        cos: Tensor,
        sin: Tensor,
        slots: Tensor,
        rows: Tensor,
        block_tables: Tensor,
        lengths: Tensor,
    ) -> tuple[Tensor, Tensor]:
        x, residual = self.attention_norm(update, residual)
        x = self.attention(x, cos, sin, slots, rows, block_tables, lengths)
        x, residual = self.mlp_norm(x, residual)
        return self.mlp(x), residual


class Decoder(nn.Cell):
    """Token ids of one flattened step to the hidden states after the last norm.

    Inputs: ids, positions [T] int32 and the fields of StepTensors. Output: [T, hidden_size] float32.
    """

    def __init__(
        self, arch: Architecture, weights: Weights, cache: PagedCache, kernels: Kernels, piece: TensorSlice
    ) -> None:
        super().__init__(auto_prefix=False)
        self.embedding = TokenEmbedding(arch, weights, kernels, piece)
        self.positions = LearnedPositions(weights) if arch.rotary is None else None
        self.angles = NoAngles() if arch.rotary is None else RotaryAngles(arch.rotary)
        self.layers = nn.CellList(
            [DecoderLayer(arch, i, weights, cache, kernels, piece) for i in range(arch.num_layers)]
        )
        self.norm = AddNorm("norm", arch, weights, kernels)

    def construct(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        rows: Tensor,
        block_tables: Tensor,
        lengths: Tensor,
    ) -> Tensor:
        update = self.embedding(ids)
        if self.positions is not None:
            update = update + self.positions(positions)
        residual = update - update
        cos, sin = self.angles(positions)
        for layer in self.layers:
            update, residual = layer(update, residual, cos, sin, slots, rows, block_tables, lengths)
        return self.norm(update, residual)[0]


class Head(nn.Cell):
    """Hidden states [S, hidden_size] to logits [S, vocab_size]."""

    def __init__(self, arch: Architecture, weights: Weights, kernels: Kernels, piece: TensorSlice) -> None:
        super().__init__(auto_prefix=False)
        name = "embedding.weight" if arch.tied else "head.weight"
        self.project = VocabularyHead(name, arch.vocab_size, weights, kernels, piece)

    def construct(self, hidden: Tensor) -> Tensor:
        return self.project(hidden)


class DecoderAndHead(nn.Cell):
    """A step whose every token is sampled: hidden states [T, hidden_size] and logits [T, vocab_size].

    One graph instead of two saves a launch, which shows when a step is a few milliseconds.
    """

    def __init__(self, decoder: Decoder, head: Head) -> None:
        super().__init__(auto_prefix=False)
        self.decoder = decoder
        self.head = head

    def construct(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        rows: Tensor,
        block_tables: Tensor,
        lengths: Tensor,
    ) -> tuple[Tensor, Tensor]:
        hidden = self.decoder(ids, positions, slots, rows, block_tables, lengths)
        return hidden, self.head(hidden)
