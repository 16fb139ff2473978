"""Matrices as GPTQ and AWQ store them: qweight and qzeros, several numbers in a word, and scales."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from mindbatch.checkpoint.formats.floats import Array
from mindbatch.checkpoint.quantised.layout import HALVES, Needed, QuantisedLayout, group_faults
from mindbatch.checkpoint.quantised.matrix import (
    WORD_BITS,
    GroupedMatrix,
    group_count,
    grouped,
    groups_in_order,
    unpacked,
)

AWQ_BITS, AWQ_IN_WORD = 4, 8
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight outputs each place of a word has, from the lowest on


@dataclass(frozen=True)
class Gptq(QuantisedLayout):
    """AutoGPTQ and GPTQModel: numbers packed along the inputs, zeros along the outputs.

    qweight [inputs / n, outputs] of n in a word, qzeros [groups, outputs / n], scales [groups, outputs].

    group_size: None for one group. is_first_format: zeros are stored less one, without the carry.
    has_order: inputs have groups in an order of their own, which g_idx tells; else it may be left out.
    """

    bits: int
    group_size: int | None
    is_first_format: bool = True
    has_order: bool = False

    main = marks = "qweight"

    @property
    def title(self) -> str:
        return f"GPTQ, {self.bits} bits{grouped(self.group_size)}"

    @property
    def _in_word(self) -> int:
        return WORD_BITS // self.bits

    def size(self, main: tuple[int, ...]) -> tuple[int, int]:
        return main[1], main[0] * self._in_word

    def size_fault(self, outputs: int, inputs: int) -> str | None:
        whole = outputs % self._in_word == 0
        return None if whole else f"{outputs} outputs; must be a multiple of {self._in_word}"

    def needed(self, outputs: int, inputs: int) -> Mapping[str, Needed]:
        groups = group_count(inputs, self.group_size)
        return {
            "qweight": Needed(("I32", "U32"), (inputs // self._in_word, outputs), is_large=True),
            "qzeros": Needed(("I32", "U32"), (groups, outputs // self._in_word)),
            "scales": Needed(HALVES, (groups, outputs)),
            "g_idx": Needed(("I32", "I64"), (inputs,), is_optional=not self.has_order),
        }

    def value_faults(self, small: Mapping[str, Array], outputs: int, inputs: int) -> Iterator[str]:
        yield from super().value_faults(small, outputs, inputs)
        if "g_idx" in small:
            yield from group_faults("g_idx", small["g_idx"], group_count(inputs, self.group_size))

    def matrix(self, tensors: Mapping[str, Array], outputs: int, inputs: int) -> GroupedMatrix:
        words = tensors["qweight"]
        zeros = unpacked(tensors["qzeros"], self.bits).T
        if self.is_first_format:
            zeros = (zeros + np.uint8(1)) & np.uint8((1 << self.bits) - 1)
        in_order = np.arange(inputs) // (self.group_size or inputs)
        stored = tensors.get("g_idx", in_order)
        is_in_order = np.array_equal(stored, in_order)
        groups = groups_in_order(inputs, self.group_size) if is_in_order else stored
        return GroupedMatrix(
            (outputs, inputs),
            lambda rows: unpacked(words[:, rows].T, self.bits),
            np.ascontiguousarray(tensors["scales"].T),
            zeros.astype(np.float32),
            groups,
        )


@dataclass(frozen=True)
class Awq(QuantisedLayout):
    """AutoAWQ in its version "gemm": packed along the outputs, in an order of its own.

    qweight [inputs, outputs / 8], qzeros [groups, outputs / 8], scales [groups, outputs].

    group_size: None for one group.
    """

    group_size: int | None

    main = marks = "qweight"

    @property
    def title(self) -> str:
        return f"AWQ, {AWQ_BITS} bits{grouped(self.group_size)}"

    def size(self, main: tuple[int, ...]) -> tuple[int, int]:
        return main[1] * AWQ_IN_WORD, main[0]

    def needed(self, outputs: int, inputs: int) -> Mapping[str, Needed]:
        groups = group_count(inputs, self.group_size)
        return {
            "qweight": Needed(("I32", "U32"), (inputs, outputs // AWQ_IN_WORD), is_large=True),
            "qzeros": Needed(("I32", "U32"), (groups, outputs // AWQ_IN_WORD)),
            "scales": Needed(HALVES, (groups, outputs)),
        }

    def matrix(self, tensors: Mapping[str, Array], outputs: int, inputs: int) -> GroupedMatrix:
        words = tensors["qweight"]

        def codes(rows: slice) -> Array:
            first, last = rows.start // AWQ_IN_WORD, -(-rows.stop // AWQ_IN_WORD)
            begin = first * AWQ_IN_WORD
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
    outputs = np.empty((len(columns), AWQ_IN_WORD, len(words)), np.uint8)
    for place, output in enumerate(_AWQ_ORDER):
        outputs[:, output] = columns >> np.uint32(AWQ_BITS * place) & np.uint32((1 << AWQ_BITS) - 1)
    return outputs.reshape(-1, len(words))
