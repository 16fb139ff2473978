"""Sizes that a step's arrays are padded to, so that few graphs are compiled."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Scalar = TypeVar("Scalar", bound=np.generic)


def buckets_up_to(largest: int, *, few: bool = False) -> list[int]:
    """Returns sizes that a step is padded to: 1, 2, 4, 8, then steps of a half or a third of a power of two.

    few: 1, 4, 16, 64 ... instead.
    """
    sizes = [1, 4, 16] if few else [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384]
    while sizes[-1] < largest:
        sizes.append(sizes[-1] * 4 if few else sizes[-2] * 2)
    return [size for size in sizes if size < largest] + [largest]


def pad_to_bucket(count: int, buckets: Sequence[int]) -> int:
    """Returns the smallest bucket that holds `count`."""
    return buckets[bisect_left(buckets, count)]


def padded(values: npt.NDArray[Scalar], size: int, padding: int = 0) -> npt.NDArray[Scalar]:
    """Pads an array to `size` rows."""
    if len(values) == size:
        return values
    rows = np.full((size, *values.shape[1:]), padding, values.dtype)
    rows[: len(values)] = values
    return rows
