"""The outermost cells of a step's graph: which arrays they take, and what they hand on to attention."""

from typing import Any

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

# In graphs a step is a plain tuple: a NamedTuple is computed by the interpreter there (30 ms a call), a tuple
# as argument of a graph is taken for a constant, and a cell with *arguments, or with arguments left to their
# defaults, never gives its memory back: so layers are handed () where there are no adapters.


class TokenGraph(nn.Cell):
    """Takes the fields of `kernels.step.Batch`; attention gets those after the positions."""

    def __init__(self, cell: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.cell = cell

    def construct(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        rows: Tensor,
        block_tables: Tensor,
        lengths: Tensor,
    ) -> Any:
        return self.cell(ids, positions, (slots, rows, block_tables, lengths), ())


class AdaptedTokenGraph(nn.Cell):
    def __init__(self, cell: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.cell = cell

    def construct(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        rows: Tensor,
        block_tables: Tensor,
        lengths: Tensor,
        adapters: Tensor,
    ) -> Any:
        return self.cell(ids, positions, (slots, rows, block_tables, lengths), (adapters,))


class EncoderDecoderGraph(nn.Cell):
    """Takes the fields of `kernels.step.PartArrays`, of an encoder or a decoder; gives float32."""

    def __init__(self, cell: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.cell = cell

    def construct(
        self,
        ids: Tensor,
        slots: Tensor,
        rows: Tensor,
        block_tables: Tensor,
        lengths: Tensor,
        firsts: Tensor,
        positions: Tensor,
    ) -> Tensor:
        step = (slots, rows, block_tables, lengths, firsts, positions)
        return ops.cast(self.cell(ids, positions, step, ()), mstype.float32)


class AdaptedEncoderDecoderGraph(nn.Cell):
    def __init__(self, cell: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.cell = cell

    def construct(
        self,
        ids: Tensor,
        slots: Tensor,
        rows: Tensor,
        block_tables: Tensor,
        lengths: Tensor,
        firsts: Tensor,
        positions: Tensor,
        adapters: Tensor,
    ) -> Tensor:
        step = (slots, rows, block_tables, lengths, firsts, positions)
        return ops.cast(self.cell(ids, positions, step, (adapters,)), mstype.float32)


class AdaptedHeadGraph(nn.Cell):
    """Takes hidden states [S, hidden_size] and the slots [S] of their adapters."""

    def __init__(self, head: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.head = head

    def construct(self, hidden: Tensor, adapters: Tensor) -> Tensor:
        return self.head(hidden, (adapters,))


class Network(nn.Cell):
    """A step whose every token is sampled: hidden states [T, hidden_size] and logits [T, vocab_size].

    One graph instead of two saves a launch, which shows when a step is a few milliseconds.

    head: None in a pipeline stage before the last, which has hidden states only. encoder: of an
        encoder-decoder.
    """

    def __init__(self, decoder: nn.Cell, head: nn.Cell | None, encoder: nn.Cell | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.decoder = decoder
        self.head = head
        self.encoder = encoder

    def construct(
        self, ids: Tensor, positions: Tensor, step: tuple[Tensor, ...], adapters: tuple[Tensor, ...]
    ) -> Tensor | tuple[Tensor, Tensor]:
        hidden = self.decoder(ids, positions, step, adapters)
        if self.head is None:
            return hidden
        return hidden, self.head(hidden, adapters)
