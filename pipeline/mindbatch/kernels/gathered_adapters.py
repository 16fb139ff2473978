"""Adapters from MindSpore's operators alone: each token gathers what its own has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindbatch.kernels.adapters import AdaptedParameter, AdapterStore
from mindbatch.kernels.arrays import Array, aligned_zeros
from mindbatch.kernels.low_rank import AdaptedShape, AdapterParts, LowRankPart, Ranks, WholePart
from mindbatch.kernels.tensors import shared_parameter


class GatheredAdapters(AdapterStore):
    """For each parameter A, B, scale, offset; and whole weights with a mark, where any adapter has one.

    A: [slots + 1, rank, inputs], of an embedding [slots + 1, tokens, rank]. B: [slots + 1, outputs, rank].
    The parts of a parameter have their ranks one after another, so that B is zero beside its blocks.
    """

    def __init__(
        self,
        shapes: Mapping[str, AdaptedShape],
        adapters: Sequence[Ranks],
        slots: int,
        dtype: np.dtype[Any],
        *,
        is_shared: bool,
    ) -> None:
        """is_shared: the device computes in NumPy's memory; elsewhere what is written is sent there."""
        self._shapes = shapes
        self._is_shared = is_shared
        self._arrays: dict[str, tuple[Array, ...]] = {}
        self.parameters = {}
        for name, shape in shapes.items():
            rank = max(1, *(sum(map(abs, ranks.get(name, ()))) for ranks in adapters))
            arrays = tuple(aligned_zeros((slots + 1, *size), dtype) for size in _sizes(shape, rank))
            arrays[2][:] = 1
            self._arrays[name] = arrays
            stored = tuple(
                shared_parameter(f"adapters.{name}.{number}", array) for number, array in enumerate(arrays)
            )
            self.parameters[name] = AdaptedParameter(stored, shape)

    def write(self, slot: int, parts: AdapterParts) -> None:
        """See `AdapterStore.write`."""
        for name, arrays in self._arrays.items():
            for number, array in enumerate(arrays):
                array[slot] = number == 2
            first = 0
            for part in parts.get(name, ()):
                if isinstance(part, WholePart):
                    arrays[4][slot, : len(part.weight)], arrays[5][slot] = part.weight, 1
                else:
                    _put(self._shapes[name], slot, part, first, arrays)
                    first += len(part.a)
            if not self._is_shared:
                _send(self.parameters[name].stored, arrays)


def _sizes(shape: AdaptedShape, rank: int) -> list[tuple[int, ...]]:
    """Of the arrays of a slot."""
    outputs = sum(shape.widths)
    a = (shape.inputs, rank) if shape.is_embedding else (rank, shape.inputs)
    sizes = [a, (outputs, rank), (outputs,), (outputs,)]
    if shape.has_whole:
        sizes += [(shape.inputs, outputs) if shape.is_embedding else (outputs, shape.inputs), (1,)]
    return sizes


def _put(shape: AdaptedShape, slot: int, part: LowRankPart, first: int, arrays: Sequence[Array]) -> None:
    start = sum(shape.widths[: part.part])
    rows, ranks = slice(start, start + len(part.b)), slice(first, first + len(part.a))
    if shape.is_embedding:
        arrays[0][slot, : part.a.shape[1], ranks] = part.a.T
    else:
        arrays[0][slot, ranks] = part.a
    arrays[1][slot, rows, ranks] = part.b
    for array, values in zip(arrays[2:4], (part.scale, part.offset), strict=True):
        if values is not None:
            array[slot, rows] = values


def _send(parameters: Sequence[Parameter], arrays: Sequence[Array]) -> None:
    for parameter, array in zip(parameters, arrays, strict=True):
        parameter.set_data(Tensor(array))


class GatheredLinear(nn.Cell):
    """Cell (x [T, inputs], weight, bias, slots [T], *stored) -> [T, outputs]."""

    def __init__(self, linear: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.linear = linear
        self.product = ops.BatchMatMul()
        self.whole = ops.MatMul(transpose_b=True)

    def construct(self, x: Tensor, weight: Tensor, bias: Tensor, slots: Tensor, *stored: Tensor) -> Tensor:
        y = self.linear(x, weight, bias)
        if len(stored) > 4:
            for slot in range(1, stored[4].shape[0]):
                chosen = ops.logical_and((slots == slot).expand_dims(1), stored[5][slot] > 0)
                y = ops.where(chosen, self.whole(x, stored[4][slot]), y)
        a, b, scale, offset = stored[:4]
        y = y * ops.gather(scale, slots, 0) + ops.gather(offset, slots, 0)
        shrunk = self.product(ops.gather(a, slots, 0), x.expand_dims(2))
        return y + self.product(ops.gather(b, slots, 0), shrunk).reshape(y.shape)


class GatheredEmbedding(nn.Cell):
    """Cell (ids [T], weight, slots [T], *stored) -> [T, width]; nothing for ids that are not held."""

    def __init__(self, lookup: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.lookup = lookup
        self.product = ops.BatchMatMul()

    def construct(self, ids: Tensor, weight: Tensor, slots: Tensor, *stored: Tensor) -> Tensor:
        a, b, scale, offset = stored[:4]
        tokens = a.shape[1]
        inside = ops.logical_and(ids >= 0, ids < tokens).expand_dims(1)
        where = slots * tokens + ops.clamp(ids, 0, tokens - 1)
        y = self.lookup(ids, weight)
        if len(stored) > 4:
            rows = ops.gather(stored[4].reshape(-1, y.shape[1]), where, 0)
            chosen = ops.logical_and(inside, ops.gather(stored[5], slots, 0) > 0)
            y = ops.where(chosen, rows, y)
        y = y * ops.gather(scale, slots, 0) + ops.gather(offset, slots, 0)
        inner = ops.gather(a.reshape(-1, a.shape[2]), where, 0) * ops.cast(inside, y.dtype)
        return y + self.product(ops.gather(b, slots, 0), inner.expand_dims(2)).reshape(y.shape)
