"""The types of numbers of llama.cpp's files: blocks of bytes, and the floats that they stand for.

Source: the layouts and formulas of ggml, whose order of rounding is kept.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mindbatch.checkpoint.formats.floats import Array, FloatArray
from mindbatch.kernels.codes import FLOAT4_NUMBERS, Codes, CodeType

_LONG = 256
_IQ4 = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)  # of a code of IQ4_NL and IQ4_XS
_TWO_BITS = np.array([0, 2, 4, 6], np.uint8)[:, None]
_ONE_BIT = np.arange(8, dtype=np.uint8)[:, None]
_E2M1_DOUBLED = np.array(FLOAT4_NUMBERS, np.int8)


class Split(NamedTuple):
    """Numbers [n, groups, size] of blocks, and the scale and the offset of each group, [n, groups]."""

    numbers: Array
    scales: FloatArray
    offsets: FloatArray | None = None


@dataclass(frozen=True)
class BlockType:
    """size: numbers of a block. nbytes: its bytes. split: takes bytes [n, nbytes] apart.

    kind: the type of its numbers, less `middle`.
    """

    name: str
    size: int
    nbytes: int
    split: Callable[[Array], Split]
    kind: CodeType
    middle: int = 0

    def decoded(self, blocks: Array) -> FloatArray:
        """The floats [n, size] of bytes [n, nbytes]."""
        numbers, scales, offsets = self.split(blocks)
        floats = scales[:, :, None] * numbers.astype(np.float32)
        if offsets is not None:
            floats = floats + offsets[:, :, None]
        return floats.reshape(len(blocks), -1)

    def codes(self, blocks: Array) -> Codes:
        """The same as numbers of its kind, [n, size]."""
        numbers, scales, offsets = self.split(blocks)
        if self.middle and offsets is not None:
            offsets = offsets + np.float32(self.middle) * scales
        return Codes((numbers - self.middle).astype(np.int8).reshape(len(blocks), -1), scales, offsets)


def _halves(blocks: Array, first: int) -> FloatArray:
    """The number in half precision at a byte of each block, [n, 1]."""
    halves: FloatArray = np.ascontiguousarray(blocks[:, first : first + 2]).view("<f2").astype(np.float32)
    return halves


def _nibbles(data: Array) -> Array:
    """Bytes [..., n] -> the codes of their lower halves and then of their higher halves, [..., 2 * n]."""
    codes: Array = np.concatenate((data & 15, data >> 4), axis=-1)
    return codes.view(np.int8)


def _bits(data: Array) -> Array:
    """Bytes [n, m] -> their bits from the lowest on, [n, 8 * m]."""
    return np.unpackbits(data, axis=-1, bitorder="little").view(np.int8)


def _crumbs(data: Array) -> Array:
    """Bytes [n, m] of four codes of two bits -> [n, 4, m], the lowest of all first."""
    codes: Array = data[:, None] >> _TWO_BITS & 3
    return codes.view(np.int8)


def _whole(numbers: Array) -> Array:
    """Numbers [n, m] of blocks that are one group."""
    return numbers[:, None]


def _q4_0(blocks: Array) -> Split:
    return Split(_whole(_nibbles(blocks[:, 2:]) - 8), _halves(blocks, 0))


def _q4_1(blocks: Array) -> Split:
    return Split(_whole(_nibbles(blocks[:, 4:])), _halves(blocks, 0), _halves(blocks, 2))


def _q5_0(blocks: Array) -> Split:
    codes = _nibbles(blocks[:, 6:]) | _bits(blocks[:, 2:6]) << 4
    return Split(_whole(codes - 16), _halves(blocks, 0))


def _q5_1(blocks: Array) -> Split:
    codes = _nibbles(blocks[:, 8:]) | _bits(blocks[:, 4:8]) << 4
    return Split(_whole(codes), _halves(blocks, 0), _halves(blocks, 2))


def _q8_0(blocks: Array) -> Split:
    return Split(_whole(blocks[:, 2:].view(np.int8)), _halves(blocks, 0))


def _iq4_nl(blocks: Array) -> Split:
    return Split(_whole(_IQ4[_nibbles(blocks[:, 2:])]), _halves(blocks, 0))


def _mxfp4(blocks: Array) -> Split:
    scales = np.ldexp(np.float32(0.5), blocks[:, :1].astype(np.int32) - 127)  # the codes are doubled
    return Split(_whole(_E2M1_DOUBLED[_nibbles(blocks[:, 1:])]), scales)


def _q2_codes(data: Array) -> Array:
    """64 bytes -> 256 codes of two bits, in two halves of which each byte has one for every 32nd number."""
    return _crumbs(data.reshape(-1, 32)).reshape(len(data), -1)


def _q2_k(blocks: Array) -> Split:
    scales, codes = blocks[:, :16], _q2_codes(blocks[:, 16:80]).reshape(-1, 16, 16)
    return Split(codes, _halves(blocks, 80) * (scales & 15), -(_halves(blocks, 82) * (scales >> 4)))


def _q3_k(blocks: Array) -> Split:
    packed = blocks[:, 96:108]
    low = _nibbles(packed[:, :8])
    high = _crumbs(packed[:, 8:])
    scales = (low | high.reshape(-1, 16) << 4) - 32
    high_bits = (blocks[:, None, :32] >> _ONE_BIT & 1).reshape(-1, _LONG).view(np.int8)
    codes = (_q2_codes(blocks[:, 32:96]) | high_bits << 2) - 4
    return Split(codes.reshape(-1, 16, 16), _halves(blocks, 108) * scales)


def _k_scales(blocks: Array) -> tuple[FloatArray, FloatArray]:
    """The steps and the offsets of eight groups, [n, 8], of Q4_K and Q5_K."""
    packed = blocks[:, 4:16]
    low, middle, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate((low & 63, high & 15 | low >> 6 << 4), axis=1)
    least = np.concatenate((middle & 63, high >> 4 | middle >> 6 << 4), axis=1)
    return _halves(blocks, 0) * scales, -(_halves(blocks, 2) * least)


def _k_codes(data: Array) -> Array:
    """128 bytes -> [n, 8, 32] codes: of each 32 bytes the lower halves, and then the higher ones."""
    return _nibbles(data.reshape(-1, 4, 32)).reshape(-1, 8, 32)


def _q4_k(blocks: Array) -> Split:
    return Split(_k_codes(blocks[:, 16:]), *_k_scales(blocks))


def _q5_k(blocks: Array) -> Split:
    high = (blocks[:, None, 16:48] >> _ONE_BIT & 1).view(np.int8)
    return Split(_k_codes(blocks[:, 48:]) | high << 4, *_k_scales(blocks))


def _q6_k(blocks: Array) -> Split:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, _LONG)
    high = _q2_codes(blocks[:, 128:192])
    codes = (low | high << 4) - 32
    return Split(codes.reshape(-1, 16, 16), _halves(blocks, 208) * blocks[:, 192:208].view(np.int8))


def _iq4_xs(blocks: Array) -> Split:
    low = np.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), axis=2).reshape(-1, 8)
    packed = np.ascontiguousarray(blocks[:, 2:4]).view("<u2")
    high = (packed >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.uint8)
    step = _halves(blocks, 0) * ((low | high << 4).astype(np.int8) - 32)
    return Split(_IQ4[_nibbles(blocks[:, 8:].reshape(-1, 8, 16))], step)


PLAIN_TYPES = {0: "F32", 1: "F16", 30: "BF16"}
"""Numbers of the types that are stored as in other files."""

BLOCK_TYPES = {
    2: BlockType("Q4_0", 32, 18, _q4_0, CodeType("int4", 32)),
    3: BlockType("Q4_1", 32, 20, _q4_1, CodeType("int4", 32, has_offsets=True), middle=8),
    6: BlockType("Q5_0", 32, 22, _q5_0, CodeType("int8", 32)),
    7: BlockType("Q5_1", 32, 24, _q5_1, CodeType("int8", 32, has_offsets=True)),
    8: BlockType("Q8_0", 32, 34, _q8_0, CodeType("int8", 32)),
    10: BlockType("Q2_K", _LONG, 84, _q2_k, CodeType("int4", 16, has_offsets=True)),
    11: BlockType("Q3_K", _LONG, 110, _q3_k, CodeType("int4", 16)),
    12: BlockType("Q4_K", _LONG, 144, _q4_k, CodeType("int4", 32, has_offsets=True), middle=8),
    13: BlockType("Q5_K", _LONG, 176, _q5_k, CodeType("int8", 32, has_offsets=True)),
    14: BlockType("Q6_K", _LONG, 210, _q6_k, CodeType("int8", 16)),
    20: BlockType("IQ4_NL", 32, 18, _iq4_nl, CodeType("int8", 32)),
    23: BlockType("IQ4_XS", _LONG, 136, _iq4_xs, CodeType("int8", 32)),
    39: BlockType("MXFP4", 32, 17, _mxfp4, CodeType("float4", 32)),
}
"""By the numbers of types, those of blocks."""

UNREAD_TYPES = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
}  # fmt: skip
"""Names of types that are not read, for messages."""
