"""MXFP4, in which experts are published."""

from collections.abc import Mapping

import numpy as np

from mindbatch.checkpoint.formats.floats import Array
from mindbatch.checkpoint.quantised.layout import GroupedMatrix, Needed, QuantisedLayout
from mindbatch.checkpoint.quantised.method import QuantisationMethod
from mindbatch.io.errors import CheckpointError

BYTES = 16  # of a block; the number in the lower bits of each comes first
BIAS = 127  # of the exponents, which are bytes
LARGEST = 252  # exponent with which all numbers are finite in float32; 255 stands for NaN
_MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_NUMBERS = np.concatenate((_MAGNITUDES, -_MAGNITUDES))
_PAIRS = np.stack((np.tile(_NUMBERS, 16), np.repeat(_NUMBERS, 16)), 1)  # of each byte


class Mxfp4(QuantisedLayout):
    """Stacks of matrices in blocks of 32 numbers of four bits with a power of two in common.

    blocks [matrices, outputs, inputs / 32, 16], scales [matrices, outputs, inputs / 32]; numbers of bfloat16.

    Source: Open Compute Project, "OCP Microscaling Formats (MX) Specification", version 1.0, 2023.
    """

    main = marks = "blocks"
    separator, weight = "_", ""
    dimensions = ("matrices", "outputs", "blocks", str(BYTES))
    is_stacked = True
    title = "MXFP4"

    def size(self, main: tuple[int, ...]) -> tuple[int, int]:
        return main[0], main[1] * 2 * BYTES

    def needed(self, outputs: int, inputs: int) -> Mapping[str, Needed]:
        blocks = inputs // (2 * BYTES)
        return {
            "blocks": Needed(("U8",), (outputs, blocks, BYTES), is_large=True),
            "scales": Needed(("U8",), (outputs, blocks), is_large=True),
        }

    def matrix(self, tensors: Mapping[str, Array], outputs: int, inputs: int) -> GroupedMatrix:
        blocks, exponents = tensors["blocks"], tensors["scales"]
        if exponents.max() > LARGEST:
            raise CheckpointError(f"exponent {exponents.max()}; must be at most {LARGEST}")
        scales = np.ldexp(np.float32(1), exponents.astype(np.int32) - BIAS)
        return GroupedMatrix(
            (outputs, inputs), lambda rows: _PAIRS[blocks[rows]].reshape(-1, inputs), scales, 0
        )


METHOD = QuantisationMethod("mxfp4", "MXFP4 experts", lambda settings: Mxfp4())
