"""Storage layouts of the methods that are read: GPTQ, AWQ, compressed-tensors and MXFP4."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from mindbatch.checkpoint.formats.floats import Array
from mindbatch.checkpoint.quantised.layout import HALVES, GroupedMatrix, Needed, QuantisedLayout, unpacked
from mindbatch.io.errors import CheckpointError

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
        return f"GPTQ, {self.bits} bits{self.grouped}"

    def size(self, main: tuple[int, ...]) -> tuple[int, int]:
        return main[1], main[0] * self.in_word

    def size_error(self, outputs: int, inputs: int) -> str | None:
        whole = outputs % self.in_word == 0
        return None if whole else f"{outputs} outputs; must be a multiple of {self.in_word}"

    def needed(self, outputs: int, inputs: int) -> Mapping[str, Needed]:
        groups = self.groups(inputs)
        return {
            "qweight": Needed(("I32", "U32"), (inputs // self.in_word, outputs), is_large=True),
            "qzeros": Needed(("I32", "U32"), (groups, outputs // self.in_word)),
            "scales": Needed(HALVES, (groups, outputs)),
            "g_idx": Needed(("I32", "I64"), (inputs,), is_optional=not self.has_order),
        }

    def matrix(self, tensors: Mapping[str, Array], outputs: int, inputs: int) -> GroupedMatrix:
        words = tensors["qweight"]
        zeros = unpacked(tensors["qzeros"], self.bits).T
        if self.is_first_format:
            zeros = (zeros + np.uint8(1)) & np.uint8((1 << self.bits) - 1)
        in_order = np.arange(inputs) // (self.group_size or inputs)
        stored = tensors.get("g_idx", in_order)
        is_in_order = np.array_equal(stored, in_order)
        groups = self.groups_in_order(inputs) if is_in_order else stored
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
        return f"AWQ, {AWQ_BITS} bits{self.grouped}"

    def size(self, main: tuple[int, ...]) -> tuple[int, int]:
        return main[1] * AWQ_IN_WORD, main[0]

    def needed(self, outputs: int, inputs: int) -> Mapping[str, Needed]:
        groups = self.groups(inputs)
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
            self.groups_in_order(inputs),
        )


def _by_outputs(words: Array) -> Array:
    """Words [n, m] -> uint8 [8 * m, n]."""
    columns = np.ascontiguousarray(words.T).view(np.uint32)
    outputs = np.empty((len(columns), AWQ_IN_WORD, len(words)), np.uint8)
    for place, output in enumerate(_AWQ_ORDER):
        outputs[:, output] = columns >> np.uint32(AWQ_BITS * place) & np.uint32((1 << AWQ_BITS) - 1)
    return outputs.reshape(-1, len(words))


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


@dataclass(frozen=True)
class CompressedInt8(QuantisedLayout):
    """Format "int-quantized": weight [outputs, inputs] int8, weight_scale [outputs, groups].

    group_size: None for a scale for each output.
    """

    group_size: int | None = None

    main, marks = "weight", "weight_scale"
    scales = marks

    @property
    def title(self) -> str:
        return f"compressed-tensors, int-quantized, 8 bits{self.grouped}"

    def size(self, main: tuple[int, ...]) -> tuple[int, int]:
        return main[0], main[1]

    def needed(self, outputs: int, inputs: int) -> Mapping[str, Needed]:
        return {
            "weight": Needed(("I8",), (outputs, inputs), is_large=True),
            "weight_scale": Needed(HALVES, (outputs, self.groups(inputs))),
        }

    def matrix(self, tensors: Mapping[str, Array], outputs: int, inputs: int) -> GroupedMatrix:
        numbers, groups = tensors["weight"], self.groups_in_order(inputs)
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
    scales, order = "weight_scale", "weight_g_idx"

    @property
    def title(self) -> str:
        return f"compressed-tensors, pack-quantized, {self.bits} bits{self.grouped}"

    def size(self, main: tuple[int, ...]) -> tuple[int, int]:
        return main[0], main[1] * self.in_word

    def needed(self, outputs: int, inputs: int) -> Mapping[str, Needed]:
        groups = self.groups(inputs)
        needed = {
            "weight_packed": Needed(("I32",), (outputs, inputs // self.in_word), is_large=True),
            "weight_scale": Needed(HALVES, (outputs, groups)),
            "weight_shape": Needed(("I64", "I32"), (2,)),
        }
        if not self.is_symmetric:
            needed["weight_zero_point"] = Needed(("I32",), (-(-outputs // self.in_word), groups))
        if self.has_order:
            needed["weight_g_idx"] = Needed(("I32", "I64"), (inputs,))
        return needed

    def value_errors(self, small: Mapping[str, Array], outputs: int, inputs: int) -> Iterator[str]:
        yield from super().value_errors(small, outputs, inputs)
        if small["weight_shape"].tolist() != [outputs, inputs]:
            yield f"weight_shape: {small['weight_shape'].tolist()}; weight_packed holds {[outputs, inputs]}"

    def matrix(self, tensors: Mapping[str, Array], outputs: int, inputs: int) -> GroupedMatrix:
        words = tensors["weight_packed"]
        zeros: Array | int = 1 << (self.bits - 1)
        if not self.is_symmetric:
            packed = unpacked(tensors["weight_zero_point"].T, self.bits)
            zeros = packed[:, :outputs].T.astype(np.float32)
        groups = tensors.get("weight_g_idx")
        if groups is None:
            groups = self.groups_in_order(inputs)
        return GroupedMatrix(
            (outputs, inputs),
            lambda rows: unpacked(words[rows], self.bits),
            tensors["weight_scale"],
            zeros,
            groups,
        )
