"""Matrices as AutoGPTQ and GPTQModel store them: numbers packed along the inputs, zeros along the outputs."""

from __future__ import annotations

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


@dataclass(frozen=True)
class Gptq(QuantisedLayout):
    """qweight [inputs / n, outputs] of n in a word, qzeros [groups, outputs / n], scales [groups, outputs].

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

    def size(self, main: tuple[int, int]) -> tuple[int, int]:
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
