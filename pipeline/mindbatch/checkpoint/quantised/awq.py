"""AWQ, as AutoAWQ writes its version "gemm"."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mindbatch.checkpoint.formats.floats import Array
from mindbatch.checkpoint.quantised.layout import HALVES, GroupedMatrix, Needed, QuantisedLayout
from mindbatch.checkpoint.quantised.method import (
    QuantisationMethod,
    SettingsReader,
    read_bits,
    read_group_size,
)
from mindbatch.checkpoint.quantised.scheme import ByMark, Scheme
from mindbatch.kernels.codes import CodeType

BITS, CODES_IN_WORD = 4, 8
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the output whose code is in each slot of a word, from the lowest on


@dataclass(frozen=True)
class Awq(QuantisedLayout):
    """Codes packed along the outputs, in an order of their own.

    qweight [inputs, outputs / 8], qzeros [groups, outputs / 8], scales [groups, outputs].

    group_size: number of inputs that have a scale together; None for all.
    """

    group_size: int | None

    main = marks = "qweight"

    @property
    def title(self) -> str:
        return f"AWQ, {BITS} bits{self.grouped}"

    def size(self, main: tuple[int, ...]) -> tuple[int, int]:
        return main[1] * CODES_IN_WORD, main[0]

    def needed(self, outputs: int, inputs: int) -> Mapping[str, Needed]:
        groups = self.groups(inputs)
        return {
            "qweight": Needed(("I32", "U32"), (inputs, outputs // CODES_IN_WORD), is_large=True),
            "qzeros": Needed(("I32", "U32"), (groups, outputs // CODES_IN_WORD)),
            "scales": Needed(HALVES, (groups, outputs)),
        }

    def matrix(self, tensors: Mapping[str, Array], outputs: int, inputs: int) -> GroupedMatrix:
        words = tensors["qweight"]

        def codes(rows: slice) -> Array:
            first, last = rows.start // CODES_IN_WORD, -(-rows.stop // CODES_IN_WORD)
            begin = first * CODES_IN_WORD
            return _by_outputs(words[:, first:last])[rows.start - begin : rows.stop - begin]

        return GroupedMatrix(
            (outputs, inputs),
            codes,
            np.ascontiguousarray(tensors["scales"].T),
            _by_outputs(tensors["qzeros"]).astype(np.float32),
            self.groups_in_order(inputs),
            middle=1 << (BITS - 1),
        )

    def code_type(self, small: Mapping[str, Array], inputs: int) -> CodeType | None:
        return self.coded_with_zeros(BITS, _by_outputs(small["qzeros"]), small, inputs)


def _by_outputs(words: Array) -> Array:
    """Words [n, m] -> uint8 [8 * m, n]."""
    columns = np.ascontiguousarray(words.T).view(np.uint32)
    outputs = np.empty((len(columns), CODES_IN_WORD, len(words)), np.uint8)
    for slot, output in enumerate(_ORDER):
        outputs[:, output] = columns >> np.uint32(BITS * slot) & np.uint32((1 << BITS) - 1)
    return outputs.reshape(-1, len(words))


def _read(settings: SettingsReader) -> Scheme:
    read_bits(settings, "bits", (BITS,))
    if not settings.flag("zero_point"):
        settings.error("zero_point", "must be true")
    form = settings.value("version") or settings.value("checkpoint_format") or "gemm"
    if str(form).lower() != "gemm":
        settings.error("version", "must be gemm")
    return ByMark(Awq(read_group_size(settings)))


METHODS = (QuantisationMethod("awq", "AWQ (4 bits)", _read),)
