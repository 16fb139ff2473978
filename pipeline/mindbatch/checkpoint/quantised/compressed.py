"""Matrices as compressed-tensors stores them: plain int8, or packed along the inputs with an offset."""

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
class CompressedInt8(QuantisedLayout):
    """Format "int-quantized": weight [outputs, inputs] int8, weight_scale [outputs, groups].

    group_size: None for a scale for each output.
    """

    group_size: int | None = None

    main, marks = "weight", "weight_scale"

    @property
    def title(self) -> str:
        return f"compressed-tensors, int-quantized, 8 bits{grouped(self.group_size)}"

    def size(self, main: tuple[int, ...]) -> tuple[int, int]:
        return main[0], main[1]

    def needed(self, outputs: int, inputs: int) -> Mapping[str, Needed]:
        return {
            "weight": Needed(("I8",), (outputs, inputs), is_large=True),
            "weight_scale": Needed(HALVES, (outputs, group_count(inputs, self.group_size))),
        }

    def matrix(self, tensors: Mapping[str, Array], outputs: int, inputs: int) -> GroupedMatrix:
        numbers, groups = tensors["weight"], groups_in_order(inputs, self.group_size)
        scales = tensors["weight_scale"]
        return GroupedMatrix((outputs, inputs), lambda rows: numbers[rows], scales, 0, groups)


@dataclass(frozen=True)
class CompressedPacked(QuantisedLayout):
    """Format "pack-quantized": weight_packed [outputs, inputs / n] of n numbers a word, each with half of the
    range added; weight_scale [outputs, groups]; weight_zero_point [outputs / n, groups], packed likewise.

    group_size: None for a scale for each output. is_symmetric: there are no zeros.
    has_order: weight_g_idx has the group of each input.
    """

    bits: int
    group_size: int | None
    is_symmetric: bool = True
    has_order: bool = False

    main = marks = "weight_packed"

    @property
    def title(self) -> str:
        return f"compressed-tensors, pack-quantized, {self.bits} bits{grouped(self.group_size)}"

    @property
    def _in_word(self) -> int:
        return WORD_BITS // self.bits

    def size(self, main: tuple[int, ...]) -> tuple[int, int]:
        return main[0], main[1] * self._in_word

    def needed(self, outputs: int, inputs: int) -> Mapping[str, Needed]:
        groups = group_count(inputs, self.group_size)
        needed = {
            "weight_packed": Needed(("I32",), (outputs, inputs // self._in_word), is_large=True),
            "weight_scale": Needed(HALVES, (outputs, groups)),
            "weight_shape": Needed(("I64", "I32"), (2,)),
        }
        if not self.is_symmetric:
            needed["weight_zero_point"] = Needed(("I32",), (-(-outputs // self._in_word), groups))
        if self.has_order:
            needed["weight_g_idx"] = Needed(("I32", "I64"), (inputs,))
        return needed

    def value_faults(self, small: Mapping[str, Array], outputs: int, inputs: int) -> Iterator[str]:
        yield from super().value_faults(small, outputs, inputs)
        if small["weight_shape"].tolist() != [outputs, inputs]:
            yield f"weight_shape: {small['weight_shape'].tolist()}; weight_packed holds {[outputs, inputs]}"
        if self.has_order:
            yield from group_faults(
                "weight_g_idx", small["weight_g_idx"], group_count(inputs, self.group_size)
            )

    def matrix(self, tensors: Mapping[str, Array], outputs: int, inputs: int) -> GroupedMatrix:
        words = tensors["weight_packed"]
        zeros: Array | int = 1 << (self.bits - 1)
        if not self.is_symmetric:
            packed = unpacked(tensors["weight_zero_point"].T, self.bits)
            zeros = packed[:, :outputs].T.astype(np.float32)
        groups = tensors.get("weight_g_idx")
        if groups is None:
            groups = groups_in_order(inputs, self.group_size)
        return GroupedMatrix(
            (outputs, inputs),
            lambda rows: unpacked(words[rows], self.bits),
            tensors["weight_scale"],
            zeros,
            groups,
        )
