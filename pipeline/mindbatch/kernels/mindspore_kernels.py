"""Kernels whose steps MindSpore compiles: operations are its cells, weights and caches its parameters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.common.np_dtype import bfloat16

from mindbatch.kernels.arrays import Array, FloatArray
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.shapes import AttentionShape, CacheGeometry
from mindbatch.kernels.step import Span, StepShape
from mindbatch.parallel.context import initialise


class MindSporeKernels(Kernels):
    """For Ascend, and for MindFormers' networks on a CPU."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's form of `float_type`; bfloat16 is MindSpore's addition to NumPy."""
        return np.dtype(bfloat16 if self.float_type.name == "bfloat16" else self.float_type.name)

    def set_up(self) -> None:
        initialise(self.device_target)

    def as_parameter(self, name: str, array: Array) -> Parameter:
        return shared_parameter(name, array)

    def floats(self, weight: Parameter | Array) -> FloatArray:
        assert isinstance(weight, Tensor)
        values: FloatArray = weight.asnumpy().astype(np.float32)
        return values

    def fixed(self, numbers: FloatArray) -> Tensor:
        return constant(numbers, np.float32)

    def zeros(self, width: int) -> Tensor:
        return constant(np.zeros(width), self.dtype)

    def absent(self) -> Tensor:
        """Stand-in for a vector that a layer has not: [1] of zero."""
        return self.zeros(1)

    @abstractmethod
    def cell(self, operation: str, **settings: Any) -> nn.Cell:
        """An operation of `mindbatch.kernels.operations` as a cell of its inputs."""

    def for_graph(self, graph: str) -> MindSporeKernels:
        """The kernels whose cells compute another kind of step, from the same weights and cache."""
        return self

    @abstractmethod
    def step_graph(self, cell: nn.Cell, geometry: CacheGeometry, *, adapted: bool = False) -> nn.Cell:
        """The outermost cell over one that takes (ids, positions, step, adapters), which gives float32.

        adapted: it takes the slots of the tokens' adapters, too, as its last input.
        """

    @abstractmethod
    def head_graph(self, head: nn.Cell, *, adapted: bool = False) -> nn.Cell:
        """The outermost cell over the head alone: hidden states [S, hidden_size] to logits, all float32.

        adapted: it takes the slots [S] of the tokens' adapters, too.
        """

    def table_width(self, needed: int, maximum: int) -> int:
        return maximum

    def spare_tokens(self, batch_size: int) -> int:
        """Tokens that the padding of a step may add to its bucket, where it holds batch_size sequences."""
        return 0

    @abstractmethod
    def step_shape(
        self, spans: Sequence[Span], pad: Callable[[int], int], capacity: int, attention: AttentionShape
    ) -> StepShape:
        """The graph that computes a step, and its sizes after padding.

        spans: positions (first, one past the last) of each sequence in the step.
        pad: from a number of tokens to the bucket that holds them.
        capacity: tokens that a block table has room for. attention: of a layer with the narrowest window.
        """


def shared_parameter(name: str, array: Array) -> Parameter:
    """A Parameter over the array's own memory; graphs read and write it in place.

    Parameter(tensor) would copy the data. It is made small first, then given the array.
    """
    parameter = Parameter(Tensor(np.zeros(1, array.dtype)), name=name, requires_grad=False)
    parameter.set_data(Tensor.from_numpy(array), slice_shape=True)
    return parameter


def constant(values: Any, dtype: Any) -> Tensor:
    return Tensor(np.asarray(values, dtype))


# In graphs a step is a plain tuple: a NamedTuple is computed by the interpreter there (30 ms a call), a tuple
# as argument of a graph is taken for a constant, and a cell with *arguments, or with arguments left to their
# defaults, never gives its memory back: so layers are handed () where there are no adapters.


class OutermostCell(nn.Cell):
    """Over one that takes what a step is to the layers."""

    def __init__(self, cell: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.cell = cell


class EncoderDecoderGraph(OutermostCell):
    """Takes the fields of `kernels.step.PartArrays`, of an encoder or a decoder; gives float32."""

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


class AdaptedEncoderDecoderGraph(OutermostCell):
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
