"""The pre-norm decoder, or a pipeline stage of it: blocks between what begins and ends them, and the head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mindbatch.kernels.layer import Layer, Operation

if TYPE_CHECKING:
    from mindspore import Tensor


Tensors = tuple["Tensor", ...]


class Block(Layer):
    """x + attention(norm(x)), then x + mlp(norm(x)), with the last sum left to the next norm."""

    def __init__(
        self, attention_norm: Operation, attention: Operation, mlp_norm: Operation, mlp: Operation
    ) -> None:
        self.attention_norm = attention_norm
        self.attention = attention
        self.mlp_norm = mlp_norm
        self.mlp = mlp

    def construct(
        self,
        update: Tensor,
        residual: Tensor,
        angles: Tensors,
        step: Tensors,
        adapters: tuple[Tensor, ...],
    ) -> tuple[Tensor, Tensor]:
        x, residual = self.attention_norm(update, residual)
        x, residual = self.mlp_norm(self.attention(x, angles, step, adapters), residual)
        return self.mlp(x, adapters), residual


class NormedSumBlock(Block):
    """n + attention(n) for n = norm(x), then the same with the MLP.

    scaled: of n where something is added to it; None adds to n itself.
    """

    def __init__(
        self,
        attention_norm: Operation,
        attention: Operation,
        mlp_norm: Operation,
        mlp: Operation,
        scaled: Operation | None,
    ) -> None:
        super().__init__(attention_norm, attention, mlp_norm, mlp)
        self.scaled = scaled

    def construct(
        self,
        update: Tensor,
        residual: Tensor,
        angles: Tensors,
        step: Tensors,
        adapters: tuple[Tensor, ...],
    ) -> tuple[Tensor, Tensor]:
        x, _ = self.attention_norm(update, residual)
        kept = x if self.scaled is None else self.scaled(x)
        x, _ = self.mlp_norm(self.attention(x, angles, step, adapters), kept)
        kept = x if self.scaled is None else self.scaled(x)
        return self.mlp(x, adapters), kept


class ParallelBlock(Layer):
    """x + attention(norm(x)) + mlp(norm(x)), with the last sum left to the next norm.

    mlp_norm: of the MLP's own input; None where attention and MLP share one norm.
    """

    def __init__(
        self,
        attention_norm: Operation,
        attention: Operation,
        mlp_norm: Operation | None,
        mlp: Operation,
        total: Operation,
    ) -> None:
        self.attention_norm = attention_norm
        self.attention = attention
        self.mlp_norm = mlp_norm
        self.mlp = mlp
        self.total = total

    def construct(
        self,
        update: Tensor,
        residual: Tensor,
        angles: Tensors,
        step: Tensors,
        adapters: tuple[Tensor, ...],
    ) -> tuple[Tensor, Tensor]:
        x, residual = self.attention_norm(update, residual)
        attended = self.attention(x, angles, step, adapters)
        if self.mlp_norm is not None:
            x = self.mlp_norm(residual)
        return self.total(attended, self.mlp(x, adapters)), residual


class QueryBlock(Layer):
    """x + attention(norm(x)), then x + mlp(norm(x)), for x = norm(the sum of what came before).

    The queries are of the tokens' positions, which come in the place of rotary angles.
    """

    def __init__(
        self,
        first_norm: Operation,
        norm: Operation,
        attention: Operation,
        mlp_norm: Operation,
        mlp: Operation,
    ) -> None:
        self.first_norm = first_norm
        self.norm = norm
        self.attention = attention
        self.mlp_norm = mlp_norm
        self.mlp = mlp

    def construct(
        self,
        update: Tensor,
        residual: Tensor,
        angles: Tensors,
        step: Tensors,
        adapters: tuple[Tensor, ...],
    ) -> tuple[Tensor, Tensor]:
        x, _ = self.first_norm(update, residual)
        attended = self.attention(self.norm(x), angles, step, adapters)
        normed, residual = self.mlp_norm(attended, x)
        return self.mlp(normed, adapters), residual


class ResidualSum(Layer):
    """What stands in the place of a norm where attention takes the residual sum itself.

    total: the sum; None in a stage's first block, whose update is all that there is.
    """

    def __init__(self, total: Operation | None) -> None:
        self.total = total

    def construct(self, update: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        x = update if self.total is None else self.total(update, residual)
        return x, x


class Angles(Layer):
    """positions [T] -> cos, sin of each of several rotary embeddings, one after another."""

    def __init__(self, parts: Sequence[Operation]) -> None:
        self.parts = [*parts]

    def construct(self, positions: Tensor) -> Tensors:
        angles: Tensors = ()
        for part in self.parts:
            angles = angles + part(positions)
        return angles


class TokenInput(Layer):
    """ids, positions [T] -> embeddings [T, hidden_size] of both; `absent` for positions that have none."""

    def __init__(self, embedding: Operation, positions: Operation | None, absent: Tensor) -> None:
        self.embedding = embedding
        self.positions = positions
        self.absent = absent

    def construct(
        self, ids: Tensor, positions: Tensor, adapters: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        residual = self.absent if self.positions is None else self.positions(positions)
        return self.embedding(ids, adapters), residual


class StageInput(Layer):
    """ids [T] -> the hidden states [T, hidden_size] of the stage before, and `absent`."""

    def __init__(self, receive: Operation, absent: Tensor) -> None:
        self.receive = receive
        self.absent = absent

    def construct(
        self, ids: Tensor, positions: Tensor, adapters: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        return self.receive(ids), self.absent


class StageOutput(Layer):
    """update + residual [T, hidden_size], handed over to the next stage."""

    def __init__(self, total: Operation, send: Operation) -> None:
        self.total = total
        self.send = send

    def construct(self, update: Tensor, residual: Tensor) -> Tensor:
        return self.send(self.total(update, residual))


class ByPosition(Layer):
    """positions [T] -> rows of a table [T, width], which blocks get in the place of rotary angles."""

    def __init__(self, rows: Operation) -> None:
        self.rows = rows

    def construct(self, positions: Tensor) -> Tensors:
        return (self.rows(positions),)


class SumOutput(Layer):
    """update + residual [T, hidden_size], where the last block is followed by no norm."""

    def __init__(self, total: Operation) -> None:
        self.total = total

    def construct(self, update: Tensor, residual: Tensor) -> Tensor:
        return self.total(update, residual)


class NormOutput(Layer):
    """The last norm of update + residual [T, hidden_size]."""

    def __init__(self, norm: Operation) -> None:
        self.norm = norm

    def construct(self, update: Tensor, residual: Tensor) -> Tensor:
        return self.norm(update, residual)[0]


class Decoder(Layer):
    """The layers of a pipeline stage, or all: one flattened step to hidden states [T, hidden_size].

    begin: (ids, positions, adapters) -> update and residual, which the first norm adds.
    end: (update, residual) -> the output. In the whole model these are the embeddings and the last norm.
    after: (output, adapters) -> hidden states of the width that the head takes; None where they have it.
    step: what the kernels' outermost cell hands to attention.
    adapters: the slots [T] of the tokens' adapters, for the layers that have any; absent without adapters.
    """

    def __init__(
        self,
        begin: Operation,
        angles: Operation | None,
        blocks: Sequence[Operation],
        end: Operation,
        after: Operation | None = None,
    ) -> None:
        self.begin = begin
        self.angles = angles
        self.blocks = [*blocks]
        self.end = end
        self.after = after

    def construct(
        self, ids: Tensor, positions: Tensor, step: Tensors, adapters: tuple[Tensor, ...]
    ) -> Tensor:
        update, residual = self.begin(ids, positions, adapters)
        angles = () if self.angles is None else self.angles(positions)
        for block in self.blocks:
            update, residual = block(update, residual, angles, step, adapters)
        hidden = self.end(update, residual)
        return hidden if self.after is None else self.after(hidden, adapters)


class Network(Layer):
    """A step whose every token is sampled: hidden states [T, hidden_size] and logits [T, vocab_size].

    One graph instead of two saves a launch, which shows when a step is a few milliseconds.

    head: None in a pipeline stage before the last, which has hidden states only.
    """

    def __init__(self, decoder: Decoder, head: Operation | None) -> None:
        self.decoder = decoder
        self.head = head

    def construct(
        self, ids: Tensor, positions: Tensor, step: Tensors, adapters: tuple[Tensor, ...]
    ) -> Tensor | tuple[Tensor, Tensor]:
        hidden = self.decoder(ids, positions, step, adapters)
        if self.head is None:
            return hidden
        return hidden, self.head(hidden, adapters)
