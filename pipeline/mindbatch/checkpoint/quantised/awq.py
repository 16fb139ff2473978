"""Matrices as AutoAWQ stores them in its version "gemm": packed along the outputs, in an order of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mindbatch.checkpoint.formats.floats import Array
from mindbatch.checkpoint.quantised.layout import HALVES, Needed, QuantisedLayout
from mindbatch.checkpoint.quantised.matrix import GroupedMatrix, group_count, grouped, groups_in_order

BITS, IN_WORD = 4, 8
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight outputs each place of a word has, from the lowest bits on


@dataclass(frozen=True)
class Awq(QuantisedLayout):
    """qweight [inputs, outputs / 8], qzeros [groups, outputs / 8], scales [groups, outputs].

    group_size: None for one group.
    """

    group_size: int | None

    main = marks = "qweight"

    @property
    def title(self) -> str:
        return f"AWQ, {BITS} bits{grouped(self.group_size)}"

    def size(self, main: tuple[int, int]) -> tuple[int, int]:
        return main[1] * IN_WORD, main[0]

    def size_fault(self, outputs: int, inputs: int) -> str | None:
        return None

    def needed(self, outputs: int, inputs: int) -> Mapping[str, Needed]:
        groups = group_count(inputs, self.group_size)
        return {
            "qweight": Needed(("I32", "U32"), (inputs, outputs // IN_WORD), is_large=True),
            "qzeros": Needed(("I32", "U32"), (groups, outputs // IN_WORD)),
            "scales": Needed(HALVES, (groups, outputs)),
        }

    def matrix(self, tensors: Mapping[str, Array], outputs: int, inputs: int) -> GroupedMatrix:
        words = tensors["qweight"]

        def codes(rows: slice) -> Array:
            first, last = rows.start // IN_WORD, -(-rows.stop // IN_WORD)
            begin = first * IN_WORD
            return _by_outputs(words[:, first:last])[rows.start - begin : rows.stop - begin]

        return GroupedMatrix(
            (outputs, inputs),
            codes,
            np.ascontiguousarray(tensors["scales"].T),
            _by_outputs(tensors["qzeros"]).astype(np.float32),
            groups_in_order(inputs, self.group_size),
        )


def _by_outputs(words: Array) -> Array:
    """Words [n, m] -> uint8 [8 * m, n]."""
    columns = np.ascontiguousarray(words.T).view(np.uint32)
    outputs = np.empty((len(columns), IN_WORD, len(words)), np.uint8)
    for place, output in enumerate(ORDER):
        outputs[:, output] = columns >> np.uint32(BITS * place) & np.uint32((1 << BITS) - 1)
    return outputs.reshape(-1, len(words))
