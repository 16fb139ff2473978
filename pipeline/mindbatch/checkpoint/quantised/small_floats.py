"""Floats of four and eight bits, and the exponents that some have in common.

Sources: Micikevicius et al., "FP8 Formats for Deep Learning" (2022), for E4M3; Open Compute Project, "OCP
Microscaling Formats (MX) Specification", version 1.0 (2023), for E2M1 and the exponents.
"""

import numpy as np

from mindbatch.checkpoint.formats.floats import Array, FloatArray
from mindbatch.io.errors import CheckpointError

STORED_E4M3, STORED_EXPONENTS = "F8_E4M3", ("U8", "F8_E8M0")
BIAS = 127  # of the exponents, which are bytes
MAX_OF_E2M1, MAX_OF_E4M3 = 252, 246  # exponents with which all numbers are finite in float32; 255 is NaN
_SIGN, _NAN = 0x80, 0x7F


def _e4m3() -> FloatArray:
    """Gives the number of each byte: a sign, four bits of exponent (bias 7), three of mantissa."""
    sizes = np.arange(_SIGN)
    exponents, mantissas = sizes >> 3, sizes & 7
    numbers = np.ldexp(mantissas + 8.0 * (exponents > 0), np.maximum(exponents, 1) - 10).astype(np.float32)
    numbers[_NAN] = np.nan
    return np.concatenate((numbers, -numbers))


E4M3 = _e4m3()
"""By a byte, the number that it stands for."""
_SIZES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E2M1 = np.concatenate((_SIZES, -_SIZES))
"""By a code of four bits, the number that it stands for."""
UNIT_OF_E2M1 = 0.5
"""All of them are whole multiples of it."""


def pair_table(numbers: FloatArray, *, high_first: bool = False) -> Array:
    """By a byte of two codes of four bits, their numbers, as 64 bits that are looked up at once."""
    low, high = np.tile(numbers, 16), np.repeat(numbers, 16)
    return np.stack((high, low) if high_first else (low, high), axis=1).view(np.uint64)[:, 0]


def from_pairs(pairs: Array, table: Array) -> FloatArray:
    """Bytes [..., m] -> numbers [..., 2 * m] of a `pair_table`."""
    numbers: FloatArray = np.take(table, pairs).view(np.float32)
    return numbers


E2M1_PAIRS = pair_table(E2M1)


def from_exponents(exponents: Array, largest: int) -> FloatArray:
    """Bytes -> powers of two. CheckpointError for exponents above the largest."""
    if exponents.size and exponents.max() > largest:
        raise CheckpointError(f"exponent {exponents.max()}; must be at most {largest}")
    powers: FloatArray = np.ldexp(np.float32(1), exponents.astype(np.int32) - BIAS)
    return powers


def refuse_nan(codes: Array) -> None:
    """CheckpointError where bytes of E4M3 stand for no number."""
    if np.any(codes & _NAN == _NAN):
        raise CheckpointError("holds numbers that are none (NaN)")
