"""Merging a LoRA adapter: weight + scaling * B @ A, for a whole weight or any box of it.

LoRA: Hu et al. 2021, https://arxiv.org/abs/2106.09685. Everything is float32; the sum is rounded once, to the
dtype of the weight. A box of the product has the very bits that the whole product has there: a weight may be
merged in any portions, by any number of ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.formats.floats import converted
from mindbatch.checkpoint.lora.adapter import LoraSource, Matrix, adapted_weights
from mindbatch.checkpoint.lora.names import LoraPair
from mindbatch.checkpoint.placement.regions import Region, Shape
from mindbatch.errors import CheckpointError

TILE = 512
"""Rows and columns of the product that are always made together, counted from its beginning."""


class LoraMerge:
    """What an adapter adds to the weights of a model; holds the two matrices of one weight at a time.

    shapes, renames, transposed: as in `adapted_weights`.
    """

    def __init__(
        self,
        adapter: LoraSource,
        shapes: Mapping[str, Shape],
        renames: Mapping[str, str] | None = None,
        transposed: Collection[str] | None = None,
    ) -> None:
        self._adapter = adapter
        self._pairs: dict[str, LoraPair] = adapted_weights(adapter, shapes, renames, transposed)
        self.scaling = np.float32(adapter.settings.scaling)
        self._matrices = lru_cache(maxsize=1)(self._read)

    @property
    def names(self) -> tuple[str, ...]:
        """The weights that change."""
        return tuple(self._pairs)

    def delta(self, name: str, box: Region) -> Matrix:
        """What is added to a box of the full weight, in the order of its own dimensions.

        KeyError for a weight that does not change.
        """
        a, b = self._matrices(name)
        if self._adapter.settings.fan_in_fan_out:
            return np.ascontiguousarray(product(b, a, box[::-1], self.scaling).T)
        return product(b, a, box, self.scaling)

    def merged(
        self, name: str, box: Region, stored: npt.NDArray[Any], dtype: str, target: str
    ) -> npt.NDArray[Any]:
        """A box of the full weight with the adapter in it.

        stored: the box as `dtype` stores it. dtype, target: as in `stored.DTYPES`; BF16 is in bits.

        Raises:
            CheckpointError: values that are too large for `target`.
        """
        wide, _ = converted(stored, dtype, "F32")
        found, num_overflows = converted(wide + self.delta(name, box), "F32", target)
        if num_overflows:
            raise CheckpointError(
                f"tensor {shown(name)}: with the adapter {num_overflows} values are too large for {target}"
            )
        return found

    def _read(self, name: str) -> tuple[Matrix, Matrix]:
        pair = self._pairs[name]
        return self._adapter.matrix(pair.a), self._adapter.matrix(pair.b)


def product(b: Matrix, a: Matrix, box: Region, scaling: np.float32) -> Matrix:
    """scaling * (b @ a) within the box, in whole tiles: products of other sizes may round otherwise."""
    (top, bottom), (left, right) = box
    found = np.empty((bottom - top, right - left), np.float32)
    for first, last in tiles(top, bottom):
        rows = np.ascontiguousarray(b[first : first + TILE])
        for start, end in tiles(left, right):
            tile = rows @ np.ascontiguousarray(a[:, start : start + TILE])
            low, high = max(first, top), min(last, bottom)
            near, far = max(start, left), min(end, right)
            part = tile[low - first : high - first, near - start : far - start]
            np.multiply(part, scaling, out=found[low - top : high - top, near - left : far - left])
    return found


def tiles(start: int, stop: int) -> Iterable[tuple[int, int]]:
    """The tiles that start..stop is in; the last one may reach beyond the end of the tensor."""
    return ((first, first + TILE) for first in range(start - start % TILE, stop, TILE))
