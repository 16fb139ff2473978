"""Random quantised matrices with the floats that they stand for, and those in floats of 4 and 8 bits."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Quantised(NamedTuple):
    """The tensors of a matrix by the ends of their names, and what it is in float32."""

    tensors: dict[str, Array]
    floats: NDArray[np.float32]


Draw = Callable[[np.random.Generator, int, int], Quantised]
"""Gives a random matrix of some outputs and inputs."""


class Method(NamedTuple):
    """A way of storing.

    settings: those of quantization_config; none where a file beside config.json says it.
    draws_by_name: other ways, of matrices whose names hold these words.
    ascend_type: what msModelSlim calls it; None for other tools.
    modelopt: the content of hf_quant_config.json.
    """

    settings: dict[str, Any]
    draw: Draw
    draws_by_name: Mapping[str, Draw] = MappingProxyType({})
    ascend_type: str | None = None
    modelopt: dict[str, Any] | None = None


def words(numbers: Array, bits: int, order: tuple[int, ...] | None = None) -> NDArray[np.int32]:
    """[n, m] of unsigned numbers, neighbours of a row in one word, padded with zeros at the end."""
    many = 32 // bits
    padded = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % many))).astype(np.uint32)
    found = np.zeros((len(padded), padded.shape[1] // many), np.uint32)
    for place, number in enumerate(order or range(many)):
        found |= padded[:, number::many] << np.uint32(bits * place)
    return found.view(np.int32)


def scales_of(chance: np.random.Generator, *shape: int) -> NDArray[np.float16]:
    """Random scales."""
    return chance.uniform(0.001, 0.02, shape).astype(np.float16)


def e4m3(code: int) -> float:
    """Sign, four bits of exponent with a bias of 7, three of mantissa."""
    sign, exponent, mantissa = code >> 7, code >> 3 & 15, code & 7
    size = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -size if sign else size


E4M3 = np.array([e4m3(code) for code in range(256)], np.float32)


def fp8(
    settings: dict[str, Any], end: str, block: tuple[int | None, int | None], *, is_flat: bool = False
) -> Method:
    """FP8 with a scale for each block; None: as many outputs or inputs as there are."""

    def draw(chance: np.random.Generator, outputs: int, inputs: int) -> Quantised:
        rows, columns = block[0] or outputs, block[1] or inputs
        codes = chance.integers(0, 0x7F, (outputs, inputs)) | chance.integers(0, 2, (outputs, inputs)) << 7
        scales = chance.uniform(0.0001, 0.001, (-(-outputs // rows), -(-inputs // columns))).astype(
            np.float32
        )
        wide = np.repeat(np.repeat(scales, rows, 0), columns, 1)[:outputs, :inputs]
        numbers = E4M3[codes]
        tensors = {
            "weight": codes.astype(np.uint8).view("V1"),
            end: scales.reshape(-1) if is_flat else scales,
        }
        return Quantised(tensors, numbers * wide)

    return Method(settings, draw)


def exponents(chance: np.random.Generator, *shape: int) -> Array:
    """Random powers of two as bytes."""
    return chance.integers(110, 122, shape).astype(np.uint8)


def powers(exponents: Array) -> NDArray[np.float32]:
    return (2.0 ** (exponents.astype(np.float64) - 127)).astype(np.float32)


def e2m1(code: int) -> float:
    """Sign, two bits of exponent with a bias of 1, one of mantissa."""
    sign, exponent, mantissa = code >> 3, code >> 1 & 3, code & 1
    size = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2 ** (exponent - 1)
    return -size if sign else size


E2M1 = np.array([e2m1(code) for code in range(16)], np.float32)


def fp4_codes(chance: np.random.Generator, outputs: int, inputs: int) -> tuple[Array, NDArray[np.float32]]:
    """Bytes of two codes, the first in the lower bits, and their numbers."""
    codes = chance.integers(0, 16, (outputs, inputs))
    return (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8), E2M1[codes]


def nvfp4(main: str, of_matrix: str, *, is_divisor: bool = False, is_scalar: bool = False) -> Draw:
    """NVFP4: scales of E4M3 for 16 inputs, and one for the matrix."""

    def draw(chance: np.random.Generator, outputs: int, inputs: int) -> Quantised:
        pairs, numbers = fp4_codes(chance, outputs, inputs)
        scale_codes = chance.integers(1, 0x7F, (outputs, inputs // 16))
        scales = E4M3[scale_codes]
        of_all = np.float32(357.25 if is_divisor else 0.00021)
        wide = np.repeat(scales / of_all if is_divisor else scales * of_all, 16, axis=1)
        tensors = {
            main: pairs,
            "weight_scale": scale_codes.astype(np.uint8).view("V1"),
            of_matrix: np.array(of_all) if is_scalar else np.array([of_all]),
            "input_scale": np.array([0.5], np.float32),
        }
        return Quantised(tensors, numbers * wide)

    return draw


def mx(main: str, *, bits: int, end: str = "weight_scale") -> Draw:
    """MXFP4 or MXFP8: an exponent for 32 inputs, or for fewer at the end."""

    def draw(chance: np.random.Generator, outputs: int, inputs: int) -> Quantised:
        stored = exponents(chance, outputs, -(-inputs // 32))
        wide = np.repeat(powers(stored), 32, axis=1)[:, :inputs]
        if bits == 4:
            pairs, numbers = fp4_codes(chance, outputs, inputs)
            return Quantised({main: pairs, end: stored}, numbers * wide)
        codes = chance.integers(0, 0x7F, (outputs, inputs))
        tensors = {main: codes.astype(np.uint8).view("V1"), end: stored}
        return Quantised(tensors, E4M3[codes] * wide)

    return draw
