"""compressed-tensors, in its formats "int-quantized", "float-quantized" and "pack-quantized"."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from mindbatch.checkpoint.formats.floats import Array
from mindbatch.checkpoint.quantised.fp8 import Fp8, read_block
from mindbatch.checkpoint.quantised.layout import HALVES, GroupedMatrix, Needed, QuantisedLayout, unpacked
from mindbatch.checkpoint.quantised.method import QuantisationMethod, SettingsReader, read_bits


@dataclass(frozen=True)
class CompressedInt8(QuantisedLayout):
    """Format "int-quantized": weight [outputs, inputs] int8, weight_scale [outputs, groups].

    group_size: number of inputs that have a scale together; None for all.
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


def _compressed(settings: SettingsReader) -> QuantisedLayout:
    form = settings.choice("format", {form_name: form_name for form_name in _FORMATS})
    for key in ("kv_cache_scheme", "transform_config"):
        if settings.value(key):
            settings.error(key, "must be null")
    sparsity = settings.value("sparsity_config")
    if isinstance(sparsity, Mapping) and sparsity.get("format", "dense") != "dense":
        settings.error("sparsity_config", "must be of format dense")
    layouts = {_FORMATS[form](weights) for weights in _group_weights(settings, form)}
    if len(layouts) != 1:
        settings.error("config_groups", "must hold a group, and all must have the same weights")
    return min(layouts, key=str, default=CompressedInt8())


def _group_weights(settings: SettingsReader, form: str) -> Iterator[SettingsReader]:
    """Yields the settings of each group's weights; checks the other settings of the groups."""
    number_type = "float" if form == "float-quantized" else "int"
    groups_by_name = settings.value("config_groups")
    groups = settings.within("config_groups", groups_by_name)
    for name, scheme in groups_by_name.items() if isinstance(groups_by_name, Mapping) else ():
        group = groups.within(name, scheme)
        group.needs("format", [form])
        group.needs("output_activations", [None])
        activations = group.value("input_activations")
        if activations is not None:  # rounded as they come, they need nothing from the folder
            rounded = group.within("input_activations", activations)
            rounded.needs("num_bits", [8])
            rounded.needs("type", [number_type])
            rounded.needs("dynamic", [True])
        weights = group.within("weights", group.value("weights"))
        weights.needs("type", [number_type])
        yield weights


def _int8(weights: SettingsReader) -> QuantisedLayout:
    weights.needs("num_bits", [8])
    weights.needs("symmetric", [True])
    return CompressedInt8(_scale_groups(weights))


def _fp8(weights: SettingsReader) -> QuantisedLayout:
    weights.needs("num_bits", [8])
    weights.needs("symmetric", [True])
    strategy = weights.choice("strategy", {name: name for name in ("channel", "tensor", "block")})
    if strategy == "block":
        return Fp8("weight_scale", read_block(weights, "block_structure"))
    return Fp8("weight_scale", (1 if strategy == "channel" else None, None))


def _packed(weights: SettingsReader) -> QuantisedLayout:
    bits = read_bits(weights, "num_bits")
    is_symmetric = weights.value("symmetric") is not False
    has_order = weights.value("actorder") in (True, "group", "dynamic")
    return CompressedPacked(bits, _scale_groups(weights), is_symmetric, has_order)


def _scale_groups(weights: SettingsReader) -> int | None:
    """Reads the number of inputs that have a scale together; None for all of them."""
    strategy = weights.choice("strategy", {"channel": "channel", "group": "group"})
    return weights.positive("group_size") if strategy == "group" else None


_FORMATS: dict[str, Callable[[SettingsReader], QuantisedLayout]] = {
    "int-quantized": _int8,
    "float-quantized": _fp8,
    "pack-quantized": _packed,
}
METHOD = QuantisationMethod(
    "compressed-tensors", "compressed-tensors (int8, FP8, and packed in 4 or 8 bits)", _compressed
)
