"""Copying blocks of caches that are in a device's memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

COPIES_PER_CALL = 16


class BlockCopies:
    """Copies a few blocks of all caches at a time, always as many, so that a single graph is compiled."""

    def __init__(self, cell: nn.Cell, padding: int) -> None:
        """cell: of the same inputs as CopyBlocks. padding: the block that nothing is read from."""
        self._cell = cell
        self._padding = padding

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        for first in range(0, len(pairs), COPIES_PER_CALL):
            some = list(pairs[first : first + COPIES_PER_CALL])
            some += [(self._padding, self._padding)] * (COPIES_PER_CALL - len(some))
            table = np.asarray(some, np.int32)
            self._cell(Tensor(table[:, 0].copy()), Tensor(table[:, 1].copy()))


class CopyBlocks(nn.Cell):
    """tensor[destinations] = tensor[sources] for every cache tensor; sources, destinations: [n] int32."""

    def __init__(self, tensors: Sequence[Parameter]) -> None:
        super().__init__(auto_prefix=False)
        self.tensors = list(tensors)
        self.update = ops.ScatterUpdate()

    def construct(self, sources: Tensor, destinations: Tensor) -> Tensor:
        for tensor in self.tensors:
            self.update(tensor, destinations, ops.gather(tensor, sources, 0))
        return sources
