"""MXFP4, in which stacks of experts are published."""

from collections.abc import Mapping

from mindbatch.checkpoint.formats.floats import Array
from mindbatch.checkpoint.quantised.layout import GroupedMatrix, Needed, QuantisedLayout
from mindbatch.checkpoint.quantised.method import QuantisationMethod
from mindbatch.checkpoint.quantised.scheme import ByMark
from mindbatch.checkpoint.quantised.small_floats import (
    E2M1_PAIRS,
    MAX_OF_E2M1,
    UNIT_OF_E2M1,
    from_exponents,
    from_pairs,
)
from mindbatch.kernels.codes import CodeType

BYTES = 16  # of a block; the number in the lower bits of each comes first


class Mxfp4(QuantisedLayout):
    """Stacks of matrices in blocks of 32 numbers of four bits with a power of two in common.

    blocks [matrices, outputs, inputs / 32, 16], scales [matrices, outputs, inputs / 32]; numbers of bfloat16.
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
        pairs, scales = tensors["blocks"].reshape(outputs, -1), from_exponents(tensors["scales"], MAX_OF_E2M1)
        return GroupedMatrix(
            (outputs, inputs), lambda rows: from_pairs(pairs[rows], E2M1_PAIRS), scales, 0, unit=UNIT_OF_E2M1
        )

    def code_type(self, small: Mapping[str, Array], inputs: int) -> CodeType | None:
        return CodeType("float4", 2 * BYTES)


METHODS = (QuantisationMethod("mxfp4", "MXFP4 experts", lambda settings: ByMark(Mxfp4())),)
