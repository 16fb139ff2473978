"""Kernels whose steps MindSpore compiles: operations are its cells, weights and caches its parameters."""

from __future__ import annotations

import os
import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.common.np_dtype import bfloat16

from mindbatch.kernels.arrays import Array, FloatArray
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.shapes import AttentionShape, CacheGeometry
from mindbatch.kernels.step import Batch, Span, StepShape
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
        capacity: tokens that a block table can address. attention: of a layer with the narrowest window.
        """


def shared_parameter(name: str, array: Array) -> Parameter:
    """A Parameter over the array's own memory; graphs read and write that memory.

    Parameter(tensor) would copy the data. It is made small first, then given the array.
    """
    parameter = Parameter(Tensor(np.zeros(1, array.dtype)), name=name, requires_grad=False)
    parameter.set_data(Tensor.from_numpy(array), slice_shape=True)
    return parameter


def constant(values: Any, dtype: Any) -> Tensor:
    return Tensor(np.asarray(values, dtype))


_NUMBERS = count()


def written_cell(arguments: Sequence[str], lines: Sequence[str], **attributes: Any) -> nn.Cell:
    """A cell whose `construct` takes arguments of these names and has these lines.

    attributes: what the lines name of self.
    """
    body = "".join(f"        {line}\n" for line in lines)
    source = f"class Written(nn.Cell):\n    def construct(self, {', '.join(arguments)}):\n{body}"
    cell: nn.Cell = _module_of(source).Written(auto_prefix=False)
    for name, value in attributes.items():
        setattr(cell, name, value)
    return cell


def _module_of(source: str) -> ModuleType:
    """A module of such a source. MindSpore's parser reads it from its file, and imports it by its name."""
    name = f"mindbatch_written_{next(_NUMBERS)}"
    path = Path(_folder(os.getpid()).name, f"{name}.py")
    imports = "from mindspore import dtype as mstype\nfrom mindspore import mint, nn, ops\n"
    path.write_text(f"{imports}\n\n{source}")
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@cache
def _folder(process: int) -> TemporaryDirectory[str]:
    """Folder of a process: a fork has its own, and keeps that of its parent, which would go with it."""
    return TemporaryDirectory(prefix="mindbatch-graphs-")


# In graphs a step is a plain tuple: a NamedTuple is computed by the interpreter there (30 ms a call), a tuple
# as argument of a graph is taken for a constant, and a cell with *arguments, or with arguments left to their
# defaults, never gives its memory back: so layers are handed () where there are no adapters.


def outermost_cell(inputs: Sequence[str], *lines: str, adapted: bool, **attributes: Any) -> nn.Cell:
    """The cell around a model's, with inputs of these names; lines, attributes: see `written_cell`.

    adapted: its last input are the slots of the tokens' adapters. To the lines they are `adapters`, as layers
    take them.
    """
    if adapted:
        return written_cell(
            [*inputs, "slots_of_adapters"], ["adapters = (slots_of_adapters,)", *lines], **attributes
        )
    return written_cell(inputs, ["adapters = ()", *lines], **attributes)


def part_graph(cell: nn.Cell, *, adapted: bool) -> nn.Cell:
    """The outermost cell of an encoder or a decoder, which takes its part of a `Batch` and gives float32."""
    step = "(slots, rows, block_tables, lengths, first_positions, positions)"
    result = f"return ops.cast(self.cell(ids, positions, {step}, adapters), mstype.float32)"
    return outermost_cell(Batch._fields[:7], result, adapted=adapted, cell=cell)


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
