"""The pre-norm decoder: blocks between an embedding and a last norm, and the head beside it."""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import Tensor, nn

Tensors = tuple[Tensor, ...]


class Block(nn.Cell):
    """x + attention(norm(x)), then x + mlp(norm(x)), with the last sum left to the next norm."""

    def __init__(self, attention_norm: nn.Cell, attention: nn.Cell, mlp_norm: nn.Cell, mlp: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.attention_norm = attention_norm
        self.attention = attention
        self.mlp_norm = mlp_norm
        self.mlp = mlp

    def construct(
        self, update: Tensor, residual: Tensor, angles: Tensors, step: Tensors
    ) -> tuple[Tensor, Tensor]:
        x, residual = self.attention_norm(update, residual)
        x, residual = self.mlp_norm(self.attention(x, angles, step), residual)
        return self.mlp(x), residual


class Decoder(nn.Cell):
    """Token ids [T] of one flattened step to hidden states [T, hidden_size] after the last norm.

    step: what the kernels' outermost cell hands to attention.
    """

    def __init__(
        self,
        embedding: nn.Cell,
        positions: nn.Cell | None,
        angles: nn.Cell | None,
        blocks: Sequence[nn.Cell],
        norm: nn.Cell,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.embedding = embedding
        self.positions = positions
        self.angles = angles
        self.blocks = nn.CellList(blocks)
        self.norm = norm

    def construct(self, ids: Tensor, positions: Tensor, step: Tensors) -> Tensor:
        update = self.embedding(ids)
        if self.positions is not None:
            update = update + self.positions(positions)
        residual = update - update
        angles = () if self.angles is None else self.angles(positions)
        for block in self.blocks:
            update, residual = block(update, residual, angles, step)
        return self.norm(update, residual)[0]


class Network(nn.Cell):
    """A step whose every token is sampled: hidden states [T, hidden_size] and logits [T, vocab_size].

    One graph instead of two saves a launch, which shows when a step is a few milliseconds.
    """

    def __init__(self, decoder: Decoder, head: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.decoder = decoder
        self.head = head

    def construct(self, ids: Tensor, positions: Tensor, step: Tensors) -> tuple[Tensor, Tensor]:
        hidden = self.decoder(ids, positions, step)
        return hidden, self.head(hidden)
