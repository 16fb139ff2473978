"""The arithmetic of LoRA and DoRA, of which any portion has the bits of the whole.

LoRA: Hu et al. 2021, https://arxiv.org/abs/2106.09685. DoRA: Liu et al. 2024, https://arxiv.org/abs/2402.09353.
Everything is float32; sums of squares are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from mindbatch.checkpoint.formats.floats import FloatArray
from mindbatch.checkpoint.placement.regions import Region, full_region

TILE = 512
"""Rows and columns of the product that are always made together, counted from its beginning."""


@dataclass(frozen=True)
class LowRank:
    """The arrays of a low-rank addition, float32, the right way round whatever the model stores.

    y = W x becomes W x + scaling * (b (a x) + bias). With a magnitude (DoRA), row o of W + scaling * b a is
    multiplied by magnitude[o] / its norm, and the module's own bias stays as it is.

    a: [rank, inputs]; the inputs of an embedding are its vocabulary, x being one-hot. b: [outputs, rank].
    bias: [outputs]; scaled as well. magnitude: [outputs].
    """

    a: FloatArray
    b: FloatArray
    scaling: float
    bias: FloatArray | None = None
    magnitude: FloatArray | None = None


def product(b: FloatArray, a: FloatArray, region: Region, scaling: np.float32) -> FloatArray:
    """scaling * (b @ a) within the region, in whole tiles: products of other sizes may round otherwise."""
    (top, bottom), (left, right) = region
    out = np.empty((bottom - top, right - left), np.float32)
    for first, last in tiles(top, bottom):
        rows = np.ascontiguousarray(b[first : first + TILE])
        for start, end in tiles(left, right):
            tile = rows @ np.ascontiguousarray(a[:, start : start + TILE])
            low, high = max(first, top), min(last, bottom)
            near, far = max(start, left), min(end, right)
            part = tile[low - first : high - first, near - start : far - start]
            np.multiply(part, scaling, out=out[low - top : high - top, near - left : far - left])
    return out


def tiles(start: int, stop: int) -> Iterable[tuple[int, int]]:
    """The tiles that start..stop is in; the last one may reach beyond the end of the tensor."""
    return ((first, first + TILE) for first in range(start - start % TILE, stop, TILE))


def merged_weight(weight: FloatArray, added: LowRank) -> FloatArray:
    """A whole weight [outputs, inputs] with what is added to it, and its rows scaled where that is so."""
    factors = row_factors(added, lambda start, stop: weight[start:stop])
    delta = product(added.b, added.a, full_region(weight.shape), np.float32(added.scaling))
    np.add(weight, delta, out=delta)
    return delta if factors is None else np.multiply(delta, factors[:, None], out=delta)


def row_factors(added: LowRank, weight: Callable[[int, int], FloatArray]) -> FloatArray | None:
    """Computes the factors of the sum's rows (DoRA), [outputs]: magnitude / norm; None without a magnitude.

    weight: gives the rows start..stop of the model's weight, float32 [rows, inputs]. TILE of them are asked
    for at once.
    """
    if added.magnitude is None:
        return None
    (outputs, _), (_, inputs) = added.b.shape, added.a.shape
    squares = np.zeros(outputs, np.float64)
    for first, last in tiles(0, outputs):
        last = min(last, outputs)
        rows = weight(first, last)
        for start, end in tiles(0, inputs):
            end = min(end, inputs)
            region = ((first, last), (start, end))
            delta = product(added.b, added.a, region, np.float32(added.scaling))
            np.add(rows[:, start:end], delta, out=delta)
            squares[first:last] += np.square(delta, dtype=np.float64).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return added.magnitude / np.sqrt(squares).astype(np.float32)
