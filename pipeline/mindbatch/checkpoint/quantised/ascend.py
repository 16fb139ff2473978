"""AscendV1, as msModelSlim writes it for Ascend: a JSON file has the type of each tensor."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mindbatch.checkpoint.error_lines import first_lines, raise_if_any, shown
from mindbatch.checkpoint.formats.floats import Array
from mindbatch.checkpoint.json_object import read_json_object
from mindbatch.checkpoint.quantised.eight_bits import BY_OUTPUT, FP8, INT8, EightBits
from mindbatch.checkpoint.quantised.four_bit_floats import Mxfp4Matrix
from mindbatch.checkpoint.quantised.fp8 import mxfp8
from mindbatch.checkpoint.quantised.layout import (
    HALVES,
    GroupedMatrix,
    Needed,
    QuantisedLayout,
    scale_errors,
)
from mindbatch.checkpoint.quantised.scheme import ReadValues, Scheme, titles
from mindbatch.io.errors import CheckpointError
from mindbatch.kernels.codes import INT8_BY_OUTPUT, CodeType

_MAX_BYTES = 100_000_000
_WEIGHT = ".weight"
_FLOAT = "FLOAT"
_PACKED_VERSION = "1.0.0"
_TRANSFORMS = (
    *(".heads_rotation", ".kronecker_rotation_m", ".kronecker_rotation_n"),
    *(".left_trans", ".right_trans", ".clip_ratio", ".mul_scale"),
)
"""Ends of the names of what activations are to be multiplied by as they are computed."""


@dataclass(frozen=True)
class StaticInt8(QuantisedLayout):
    """weight [outputs, inputs] int8 and what makes one step of its product of rounded activations.

    Activations x are q = round(x / input_scale + input_offset), and outputs
    (q weight^T + quant_bias) * deq_scale, where deq_scale = input_scale * weight_scale, and quant_bias holds
    the bias and takes the offset away again. deq_scale may be int64, whose lower half is a float32.
    """

    main, marks = "weight", "deq_scale"
    scales = "deq_scale"
    group_size = None
    title = "int8, a scale for each output and one for activations"

    def size(self, main: tuple[int, ...]) -> tuple[int, int]:
        return main[0], main[1]

    def needed(self, outputs: int, inputs: int) -> Mapping[str, Needed]:
        of_outputs = (outputs,)
        return {
            "weight": Needed(("I8",), (outputs, inputs), is_large=True),
            "input_scale": Needed(HALVES, (1,), of_activations=True),
            "input_offset": Needed((*HALVES, "I8", "I32"), (1,)),
            "quant_bias": Needed(("I32",), of_outputs),
            "deq_scale": Needed(("F32", "I64"), of_outputs),
            "weight_scale": Needed(HALVES, of_outputs, is_optional=True),
            "weight_offset": Needed(_OFFSETS, of_outputs, is_optional=True),
            "bias": Needed(HALVES, of_outputs, is_optional=True, is_own=True),
        }

    def value_errors(self, small: Mapping[str, Array], outputs: int, inputs: int) -> Iterator[str]:
        steps, of_inputs = _steps(small["deq_scale"]), small["input_scale"]
        errors = [*scale_errors("deq_scale", steps), *scale_errors("input_scale", of_inputs)]
        yield from errors
        if np.any(small.get("weight_offset", np.zeros(1))):
            yield "weight_offset: must be zero where deq_scale is given"
        if "weight_scale" in small and not errors:
            off = np.abs(small["weight_scale"] * of_inputs - steps) > _TOLERANCE * steps
            if off.any():
                yield f"deq_scale: {off.sum()} of {outputs} are not input_scale * weight_scale"

    def matrix(self, tensors: Mapping[str, Array], outputs: int, inputs: int) -> GroupedMatrix:
        numbers, steps = tensors["weight"], _steps(tensors["deq_scale"]).astype(np.float64)
        bias = tensors.get("bias", np.zeros(1)) / steps
        shift = np.float64(tensors["input_offset"][0]) * numbers.sum(axis=1, dtype=np.int64)
        off = np.abs(tensors["quant_bias"] - (bias - shift)) > 1 + _ROUNDED * abs(bias) + _SUMMED * abs(shift)
        if off.any():
            raise CheckpointError(
                f"quant_bias of {off.sum()} of {outputs} outputs holds more than the bias and input_offset: "
                "activations were shifted before, which is not done here"
            )
        scales = tensors.get("weight_scale", (steps / tensors["input_scale"]).astype(np.float32))
        return GroupedMatrix((outputs, inputs), lambda part: numbers[part], scales[:, None], 0)

    def code_type(self, small: Mapping[str, Array], inputs: int) -> CodeType | None:
        return INT8_BY_OUTPUT


_OFFSETS = (*HALVES, "I8", "I32", "I64")
_TOLERANCE = 1e-2  # each scale may be bfloat16
_ROUNDED, _SUMMED = 2**-8, 1e-6  # the bias may be bfloat16; the shift was computed in float32


def _steps(stored: Array) -> Array:
    """deq_scale as floats; NaN where int64 holds more than one."""
    if stored.dtype != np.int64:
        return stored
    is_one = (stored >= 0) & (stored < 1 << 32)
    steps: Array = np.where(is_one, stored.astype(np.uint32).view(np.float32), np.float32(np.nan))
    return steps


@dataclass(frozen=True)
class FourBitInts(QuantisedLayout):
    """weight: codes of four bits with a sign, two outputs in a byte, of which the first is in the lower bits.

    group_size: number of inputs that have a scale of weight_scale_second besides that of their output.
    is_packed: False if each code is a number of int8.
    """

    group_size: int | None
    is_packed: bool

    main, marks, scales = "weight", "weight_scale", "weight_scale"
    bits = 4

    @property
    def title(self) -> str:
        return f"int4, a scale for each output{self.grouped}"

    def size(self, main: tuple[int, ...]) -> tuple[int, int]:
        return main[0] * (2 if self.is_packed else 1), main[1]

    def needed(self, outputs: int, inputs: int) -> Mapping[str, Needed]:
        groups = (outputs, self.groups(inputs))
        needed = {
            "weight": Needed(("I8",), (outputs // (2 if self.is_packed else 1), inputs), is_large=True),
            "weight_scale": Needed(HALVES, (outputs,)),
            "weight_offset": Needed(_OFFSETS, (outputs,), is_optional=True),
            "scale_bias": Needed(HALVES, None, is_optional=True),  # follows from the rest
        }
        if self.group_size is not None:
            needed["weight_scale_second"] = Needed(HALVES, groups)
            needed["weight_offset_second"] = Needed(_OFFSETS, groups, is_optional=True)
        return needed

    def value_errors(self, small: Mapping[str, Array], outputs: int, inputs: int) -> Iterator[str]:
        yield from super().value_errors(small, outputs, inputs)
        if "weight_scale_second" in small:
            yield from scale_errors("weight_scale_second", small["weight_scale_second"])
        yield from (
            f"{end}: must be zero" for end, values in small.items() if "offset" in end and np.any(values)
        )

    def matrix(self, tensors: Mapping[str, Array], outputs: int, inputs: int) -> GroupedMatrix:
        stored = tensors["weight"]
        scales = tensors["weight_scale"][:, None]
        if self.group_size is not None:
            scales = scales * tensors["weight_scale_second"]
        return GroupedMatrix(
            (outputs, inputs),
            (lambda part: _codes(stored, part)) if self.is_packed else (lambda part: stored[part]),
            scales,
            0,
            self.groups_in_order(inputs),
        )

    def code_type(self, small: Mapping[str, Array], inputs: int) -> CodeType | None:
        return self.coded("int4", small, inputs)


def _codes(pairs: Array, rows: slice) -> Array:
    first, last = rows.start // 2, -(-rows.stop // 2)
    stored = pairs[first:last]
    codes = np.stack((stored << 4 >> 4, stored >> 4), 1).reshape(-1, stored.shape[1])
    wanted: Array = codes[rows.start - 2 * first : rows.stop - 2 * first]
    return wanted


class AscendScheme(Scheme):
    """Reads the description of a folder."""

    def __init__(self, path: Path) -> None:
        """Raises:
        CheckpointError: the file is damaged, or says what is not read.
        """
        self.source = path.name
        content = read_json_object(path, _MAX_BYTES)
        group_size = content.get("group_size") or None
        if group_size is not None and (type(group_size) is not int or group_size < 0):
            raise CheckpointError(f"{path}: group_size={shown(group_size)}: must be a number of inputs, or 0")
        self._layouts = _layouts(group_size, content.get("version") == _PACKED_VERSION)
        known = (_FLOAT, *self._layouts)
        self._types = {name: value for name, value in content.items() if name.endswith(_WEIGHT)}
        self._others = [name for name, value in content.items() if "." in name and value in known[1:]]
        unread = [name for name, value in self._types.items() if value not in known]
        allowed = ", ".join(known)
        raise_if_any(
            first_lines(
                unread, lambda name: f"{shown(name)} is {shown(self._types[name])}; allowed: {allowed}"
            ),
            str(path),
        )
        used = dict.fromkeys(self._types.values())
        self.title = f"AscendV1 ({titles(self._layouts[value] for value in used if value in self._layouts)})"

    def layouts(self, names: Collection[str], values: ReadValues) -> Mapping[str, QuantisedLayout]:
        present = {*names}
        absent = [name for name in self._others if name not in present]
        transforms = [name for name in names if name.endswith(_TRANSFORMS)]
        raise_if_any(
            [
                *first_lines(absent, lambda name: f"{shown(name)} is not in the folder"),
                *first_lines(
                    transforms,
                    lambda name: f"tensor {shown(name)} is to multiply activations, which is not done here",
                ),
            ],
            self.source,
        )
        return {
            name.removesuffix(_WEIGHT): self._layouts[value]
            for name, value in self._types.items()
            if value != _FLOAT
        }


def _layouts(group_size: int | None, is_packed: bool) -> dict[str, QuantisedLayout]:
    """By the name of a type, how matrices of it are stored."""
    by_output = EightBits(INT8, "weight_scale", BY_OUTPUT, zeros="weight_offset")
    by_group = EightBits(INT8, "weight_scale", (1, group_size), zeros="weight_offset")
    return {
        "W8A16": by_group,
        "W8A8": StaticInt8(),
        "W8A8_MIX": StaticInt8(),
        "W8A8_DYNAMIC": by_output,
        "W4A8_DYNAMIC": FourBitInts(group_size, is_packed),
        "W4A4_DYNAMIC": by_output,
        "WFP8AFP8_DYNAMIC": EightBits(FP8, "weight_scale", BY_OUTPUT),
        "W8A8_MXFP8": mxfp8("weight_scale"),
        "W4A8_MXFP": Mxfp4Matrix("weight"),
        "W4A4_MXFP4": Mxfp4Matrix("weight"),
    }
