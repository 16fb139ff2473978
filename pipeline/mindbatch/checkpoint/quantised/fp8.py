"""FP8: numbers of eight bits (E4M3) with a scale for each block, as DeepSeek and Qwen publish them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mindbatch.checkpoint.formats.floats import Array, FloatArray
from mindbatch.checkpoint.quantised.layout import HALVES, GroupedMatrix, Needed, QuantisedLayout
from mindbatch.checkpoint.quantised.method import QuantisationMethod, SettingsReader
from mindbatch.io.errors import CheckpointError

STORED = "F8_E4M3"
_SIGN, _NAN = 0x80, 0x7F


def _e4m3() -> FloatArray:
    """Gives the number of each byte: a sign, four bits of exponent (bias 7), three of mantissa.

    Source: Micikevicius et al., "FP8 Formats for Deep Learning" (2022).
    """
    sizes = np.arange(_SIGN)
    exponents, mantissas = sizes >> 3, sizes & 7
    numbers = np.ldexp(mantissas + 8.0 * (exponents > 0), np.maximum(exponents, 1) - 10).astype(np.float32)
    numbers[_NAN] = np.nan
    return np.concatenate((numbers, -numbers))


_NUMBERS = _e4m3()
_SCALES: dict[tuple[int | None, int | None], str] = {
    (None, None): "one scale",
    (1, None): "a scale for each output",
}
"""In words, by what has a scale together: see `Fp8.block`."""


@dataclass(frozen=True)
class Fp8(QuantisedLayout):
    """weight [outputs, inputs], and a scale for each block of neighbouring outputs and inputs.

    marks: end of the name of the scales, which numbers are multiplied by.
    block: outputs and inputs of a block, None for all of them; of a single block the scale is a vector of one
        number.
    """

    marks: str
    block: tuple[int | None, int | None]

    main = "weight"

    @property
    def scales(self) -> str:  # type: ignore[override]
        return self.marks

    @property
    def title(self) -> str:
        blocks = f"blocks of {self.block[0]} x {self.block[1]}"
        return f"FP8, {_SCALES.get(self.block, blocks)}"

    @property
    def group_size(self) -> int | None:  # type: ignore[override]
        return self.block[1]

    def size(self, main: tuple[int, ...]) -> tuple[int, int]:
        return main[0], main[1]

    def needed(self, outputs: int, inputs: int) -> Mapping[str, Needed]:
        rows = 1 if self.block[0] is None else -(-outputs // self.block[0])
        shape = (1,) if self.block == (None, None) else (rows, self.groups(inputs))
        return {
            "weight": Needed((STORED,), (outputs, inputs), is_large=True),
            self.marks: Needed(HALVES, shape),
        }

    def matrix(self, tensors: Mapping[str, Array], outputs: int, inputs: int) -> GroupedMatrix:
        codes, scales = tensors["weight"], tensors[self.marks]
        if np.any(codes & _NAN == _NAN):
            raise CheckpointError("holds numbers that are none (NaN)")
        return GroupedMatrix(
            (outputs, inputs),
            lambda part: _NUMBERS[codes[part]],
            np.repeat(scales.reshape(-1, self.groups(inputs)), self.block[0] or outputs, axis=0)[:outputs],
            0,
            self.groups_in_order(inputs),
            is_integer=False,
        )


def read_block(settings: SettingsReader, key: str) -> tuple[int, int]:
    """Reads the numbers of outputs and inputs of a block; where they are none, an error is noted."""
    block = settings.value(key)
    if isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block):
        return block[0], block[1]
    settings.error(key, "must be two positive numbers, the outputs and the inputs of a block")
    return 1, 1


def _read(settings: SettingsReader) -> QuantisedLayout:
    settings.needs("fmt", ["e4m3", "float8_e4m3fn"])
    settings.needs("activation_scheme", ["dynamic"])
    return Fp8("weight_scale_inv", read_block(settings, "weight_block_size"))


METHOD = QuantisationMethod("fp8", "FP8 in blocks", _read)
