"""GPTQ, as AutoGPTQ and GPTQModel write it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from mindbatch.checkpoint.formats.floats import Array
from mindbatch.checkpoint.quantised.layout import HALVES, GroupedMatrix, Needed, QuantisedLayout, unpacked
from mindbatch.checkpoint.quantised.method import (
    QuantisationMethod,
    SettingsReader,
    compiled,
    read_bits,
    read_group_size,
)
from mindbatch.checkpoint.quantised.scheme import ByMark, ByName, Scheme
from mindbatch.kernels.codes import CodeType


@dataclass(frozen=True)
class Gptq(QuantisedLayout):
    """Codes packed along the inputs, zeros along the outputs.

    qweight [inputs / n, outputs] of n in a word, qzeros [groups, outputs / n], scales [groups, outputs].

    group_size: number of inputs that have a scale together; None for all.
    is_first_format: True if zeros are stored less one, without the carry.
    has_order: True if g_idx has the group of each input; else it may be left out.
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
        in_order = np.arange(inputs) // (self.group_size or inputs)
        stored = tensors.get("g_idx", in_order)
        is_in_order = np.array_equal(stored, in_order)
        groups = self.groups_in_order(inputs) if is_in_order else stored
        return GroupedMatrix(
            (outputs, inputs),
            lambda rows: unpacked(words[:, rows].T, self.bits),
            np.ascontiguousarray(tensors["scales"].T),
            self._zeros(tensors).astype(np.float32),
            groups,
            middle=1 << (self.bits - 1),
        )

    def code_type(self, small: Mapping[str, Array], inputs: int) -> CodeType | None:
        return self.coded_with_zeros(self.bits, self._zeros(small), small, inputs)

    def _zeros(self, tensors: Mapping[str, Array]) -> Array:
        """The zeros, [outputs, groups]."""
        zeros = unpacked(tensors["qzeros"], self.bits).T
        if self.is_first_format:
            zeros = (zeros + np.uint8(1)) & np.uint8((1 << self.bits) - 1)
        return zeros


def _read(settings: SettingsReader) -> Scheme:
    form = settings.value("checkpoint_format") or settings.value("format") or "gptq"
    if form not in ("gptq", "gptq_v2"):
        settings.error("checkpoint_format", "must be gptq or gptq_v2")
    settings.needs("pack_dtype", ["int32"])
    settings.needs("data_type", ["int"])
    layout = Gptq(
        read_bits(settings, "bits"), read_group_size(settings), form == "gptq", settings.flag("desc_act")
    )
    own = _own_settings(settings, layout)
    if all(other in (None, layout) for other in own.values()):
        return ByMark(layout)

    def chosen(module: str) -> QuantisedLayout | None:
        return next((other for pattern, other in own.items() if pattern.match(module)), layout)

    return ByName([layout, *filter(None, own.values())], chosen)


def _own_settings(settings: SettingsReader, layout: Gptq) -> dict[re.Pattern[str], Gptq | None]:
    """Reads GPTQModel's settings of some modules, by an expression for the beginnings of their names.

    None for "-:", modules that are floats; where an expression or a setting is none, an error is noted.
    """
    content = settings.value("dynamic")
    entries = settings.within("dynamic", content or {})
    own: dict[re.Pattern[str], Gptq | None] = {}
    for name, entry in content.items() if isinstance(content, Mapping) else ():
        pattern = compiled(name.removeprefix("-:").removeprefix("+:"))
        if isinstance(pattern, str):
            entries.error(name, pattern)
            continue
        if name.startswith("-:"):
            own[pattern] = None
            continue
        of_module = entries.within(name, entry)
        own[pattern] = replace(
            layout,
            bits=layout.bits if of_module.value("bits") is None else read_bits(of_module, "bits"),
            group_size=(
                layout.group_size if of_module.value("group_size") is None else read_group_size(of_module)
            ),
            has_order=layout.has_order if of_module.value("desc_act") is None else of_module.flag("desc_act"),
        )
    return own


METHODS = (QuantisationMethod("gptq", "GPTQ (4 or 8 bits)", _read),)
