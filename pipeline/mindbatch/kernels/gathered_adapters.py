"""Adapters from MindSpore's operators alone: each token gathers the matrices of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindbatch.kernels.adapters import AdaptedParameter, AdapterStore
from mindbatch.kernels.arrays import Array, aligned_zeros, shared_parameter
from mindbatch.kernels.low_rank import AdaptedShape, AdapterParts, Ranks


class GatheredAdapters(AdapterStore):
    """For each parameter A [slots + 1, rank, inputs] and B [slots + 1, outputs, rank], filled up with zeros.

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
        self._arrays: dict[str, tuple[Array, Array]] = {}
        self.parameters = {}
        for name, shape in shapes.items():
            rank = max(sum(ranks.get(name, ())) for ranks in adapters)
            a = aligned_zeros((slots + 1, rank, shape.inputs), dtype)
            b = aligned_zeros((slots + 1, sum(shape.widths), rank), dtype)
            self._arrays[name] = (a, b)
            stored = (shared_parameter(f"adapters.{name}.a", a), shared_parameter(f"adapters.{name}.b", b))
            self.parameters[name] = AdaptedParameter(stored, shape.widths)

    def write(self, slot: int, parts: AdapterParts) -> None:
        """See `AdapterStore.write`."""
        for name, (a, b) in self._arrays.items():
            a[slot], b[slot] = 0, 0
            starts = np.cumsum((0, *self._shapes[name].widths))
            first = 0
            for number, low, high in parts.get(name, ()):
                ranks = slice(first, first + len(low))
                a[slot, ranks] = low
                b[slot, starts[number] : starts[number] + len(high), ranks] = high
                first = ranks.stop
            if not self._is_shared:
                _send(self.parameters[name].stored, (a, b))


def _send(parameters: Sequence[Parameter], arrays: Sequence[Array]) -> None:
    for parameter, array in zip(parameters, arrays, strict=True):
        parameter.set_data(Tensor(array))


class GatheredLinear(nn.Cell):
    """Cell (x [T, inputs], weight, bias, slots [T], A, B) -> x W^T + b + x A^T B^T, each with its own."""

    def __init__(self, linear: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.linear = linear
        self.product = ops.BatchMatMul()

    def construct(
        self, x: Tensor, weight: Tensor, bias: Tensor, slots: Tensor, a: Tensor, b: Tensor
    ) -> Tensor:
        y = self.linear(x, weight, bias)
        shrunk = self.product(ops.gather(a, slots, 0), x.expand_dims(2))
        return y + self.product(ops.gather(b, slots, 0), shrunk).reshape(y.shape)
