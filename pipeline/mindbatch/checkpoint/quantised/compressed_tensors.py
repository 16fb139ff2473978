"""compressed-tensors, as llm-compressor writes it: groups of matrices, each in one of its formats."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from mindbatch.checkpoint.formats.floats import Array
from mindbatch.checkpoint.quantised.eight_bits import BY_OUTPUT, FP8, INT8, WHOLE, Block, EightBits
from mindbatch.checkpoint.quantised.four_bit_floats import Mxfp4Matrix, Nvfp4Matrix
from mindbatch.checkpoint.quantised.fp8 import mxfp8, read_block
from mindbatch.checkpoint.quantised.layout import (
    HALVES,
    OF_ACTIVATIONS,
    GroupedMatrix,
    Needed,
    QuantisedLayout,
    unpacked,
)
from mindbatch.checkpoint.quantised.method import QuantisationMethod, SettingsReader, compiled, read_bits
from mindbatch.checkpoint.quantised.scheme import ByMark, ByName, Scheme
from mindbatch.kernels.codes import CodeType


@dataclass(frozen=True)
class CompressedPacked(QuantisedLayout):
    """Format "pack-quantized": weight_packed [outputs, inputs / n] of n codes a word, each with half of the
    range added; weight_scale [outputs, groups]; weight_zero_point [outputs / n, groups], packed likewise.

    group_size: number of inputs that have a scale together; None for all.
    is_symmetric: True if there are no zeros.
    has_order: True if weight_g_idx has the group of each input.
    """

    bits: int
    group_size: int | None
    is_symmetric: bool = True
    has_order: bool = False

    main = marks = "weight_packed"
    scales, order = "weight_scale", "weight_g_idx"

    @property
    def title(self) -> str:
        return f"packed, {self.bits} bits{self.grouped}"

    def size(self, main: tuple[int, ...]) -> tuple[int, int]:
        return main[0], main[1] * self.in_word

    def needed(self, outputs: int, inputs: int) -> Mapping[str, Needed]:
        groups = self.groups(inputs)
        needed = {
            "weight_packed": Needed(("I32",), (outputs, inputs // self.in_word), is_large=True),
            "weight_scale": Needed(HALVES, (outputs, groups)),
            "weight_shape": Needed(("I64", "I32"), (2,)),
            **OF_ACTIVATIONS,
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
            zeros = self._zeros(tensors)[:outputs].astype(np.float32)
        groups = tensors.get("weight_g_idx")
        if groups is None:
            groups = self.groups_in_order(inputs)
        return GroupedMatrix(
            (outputs, inputs),
            lambda rows: unpacked(words[rows], self.bits),
            tensors["weight_scale"],
            zeros,
            groups,
            middle=1 << (self.bits - 1),
        )

    def code_type(self, small: Mapping[str, Array], inputs: int) -> CodeType | None:
        if self.is_symmetric:
            return self.coded(f"int{self.bits}", small, inputs)
        return self.coded_with_zeros(self.bits, self._zeros(small), small, inputs)

    def _zeros(self, tensors: Mapping[str, Array]) -> Array:
        """The zeros, [outputs and what fills the last word, groups]."""
        return unpacked(tensors["weight_zero_point"].T, self.bits).T


class _Group(NamedTuple):
    """Matrices that are stored alike, by classes of modules, by names, and by expressions after "re:"."""

    targets: tuple[str, ...]
    layout: QuantisedLayout


_CLASS, _EXPRESSION = "Linear", "re:"
_MIXED = "mixed-precision"


def _compressed(settings: SettingsReader) -> Scheme:
    form = settings.choice("format", {form_name: form_name for form_name in (*_FORMATS, _MIXED)})
    if settings.value("transform_config"):
        settings.error("transform_config", "must be null")
    sparsity = settings.value("sparsity_config")
    if isinstance(sparsity, Mapping) and sparsity.get("format", "dense") != "dense":
        settings.error("sparsity_config", "must be of format dense")
    groups = [*_groups(settings, form)]
    if not groups:
        settings.error("config_groups", "must hold a group")
    layouts = [*dict.fromkeys(group.layout for group in groups)]
    if len(layouts) < 2:
        return ByMark(*layouts)
    return ByName(layouts, partial(_layout_of, groups))


def _groups(settings: SettingsReader, form: str) -> Iterator[_Group]:
    """Reads the groups; checks what their activations are to be."""
    groups_by_name = settings.value("config_groups")
    groups = settings.within("config_groups", groups_by_name)
    for name, scheme in groups_by_name.items() if isinstance(groups_by_name, Mapping) else ():
        group = groups.within(name, scheme)
        own = form
        if form == _MIXED:
            own = group.choice("format", {form_name: form_name for form_name in _FORMATS})
        else:
            group.needs("format", [form])
        group.needs("output_activations", [None])
        if (activations := group.value("input_activations")) is not None:
            rounded = group.within("input_activations", activations)
            rounded.needs("num_bits", [4, 8])
            rounded.needs("dynamic", [True, False, "local"])
        layout = _FORMATS[own](group.within("weights", group.value("weights")))
        targets = group.value("targets")
        if not isinstance(targets, list) or not all(_is_target(target) for target in targets):
            group.error("targets", "must be a list of names, classes, and expressions after re:")
            targets = []
        yield _Group((*targets,), layout)


def _is_target(target: object) -> bool:
    if not isinstance(target, str):
        return False
    return not target.startswith(_EXPRESSION) or not isinstance(compiled(target[len(_EXPRESSION) :]), str)


def _layout_of(groups: Sequence[_Group], module: str) -> QuantisedLayout | None:
    """The layout of the group that names the module; else that of an expression, else that of its class.

    None where none does, or two that differ do it alike.
    """
    kinds: tuple[Callable[[str], bool], ...] = (
        lambda target: target == module,
        lambda target: target.startswith(_EXPRESSION) and bool(re.match(target[len(_EXPRESSION) :], module)),
        lambda target: target == _CLASS,
    )
    for is_meant in kinds:
        if chosen := {group.layout for group in groups if any(map(is_meant, group.targets))}:
            return chosen.pop() if len(chosen) == 1 else None
    return None


def _int8(weights: SettingsReader) -> QuantisedLayout:
    weights.needs("type", ["int"])
    weights.needs("num_bits", [8])
    zeros = "weight_zero_point" if weights.value("symmetric") is False else None
    return EightBits(INT8, "weight_scale", _block(weights), zeros=zeros)


def _fp8(weights: SettingsReader) -> QuantisedLayout:
    weights.needs("type", ["float"])
    weights.needs("num_bits", [8])
    weights.needs("symmetric", [True])
    return EightBits(FP8, "weight_scale", _block(weights))


def _naive(weights: SettingsReader) -> QuantisedLayout:
    return _fp8(weights) if weights.value("type") == "float" else _int8(weights)


def _block(weights: SettingsReader) -> Block:
    names = ("channel", "tensor", "group", "block")
    strategy = weights.choice("strategy", {name: name for name in names})
    if strategy == "block":
        return read_block(weights, "block_structure")
    return {"channel": BY_OUTPUT, "tensor": WHOLE}.get(strategy) or (1, weights.positive("group_size"))


def _mx(layout: QuantisedLayout, bits: int) -> Callable[[SettingsReader], QuantisedLayout]:
    def read(weights: SettingsReader) -> QuantisedLayout:
        weights.needs("type", ["float"])
        weights.needs("num_bits", [bits])
        weights.needs("symmetric", [True])
        weights.needs("group_size", [layout.group_size])
        return layout

    return read


def _packed(weights: SettingsReader) -> QuantisedLayout:
    weights.needs("type", ["int"])
    bits = read_bits(weights, "num_bits")
    is_symmetric = weights.value("symmetric") is not False
    has_order = weights.value("actorder") in (True, "group", "dynamic")
    strategy = weights.choice("strategy", {"channel": "channel", "group": "group"})
    group_size = weights.positive("group_size") if strategy == "group" else None
    return CompressedPacked(bits, group_size, is_symmetric, has_order)


_FORMATS: dict[str, Callable[[SettingsReader], QuantisedLayout]] = {
    "int-quantized": _int8,
    "float-quantized": _fp8,
    "naive-quantized": _naive,
    "pack-quantized": _packed,
    "nvfp4-pack-quantized": _mx(Nvfp4Matrix("weight_packed", "weight_global_scale", is_divisor=True), 4),
    "mxfp4-pack-quantized": _mx(Mxfp4Matrix("weight_packed"), 4),
    "mxfp8-quantized": _mx(mxfp8("weight_scale"), 8),
}
_TITLE = "compressed-tensors (int8, FP8, MXFP8, NVFP4, MXFP4, and packed in 4 or 8 bits)"
METHODS = (QuantisationMethod("compressed-tensors", _TITLE, _compressed),)
