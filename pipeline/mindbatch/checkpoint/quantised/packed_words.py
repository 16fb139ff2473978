"""Small integers packed in words of 32 bits, the first in the lowest bits."""

from __future__ import annotations

import numpy as np

from mindbatch.checkpoint.formats.floats import Array

WORD_BITS = 32


def unpacked(words: Array, bits: int) -> Array:
    """Words [..., n] of 4 or 8 bits each number -> uint8 [..., n * 32 / bits]."""
    numbers = np.ascontiguousarray(words).astype("<u4", copy=False).view(np.uint8)
    if bits == 8:
        return numbers
    halves = np.empty((*numbers.shape, 2), np.uint8)
    np.bitwise_and(numbers, 15, out=halves[..., 0])
    np.right_shift(numbers, 4, out=halves[..., 1])
    return halves.reshape(*numbers.shape[:-1], -1)
