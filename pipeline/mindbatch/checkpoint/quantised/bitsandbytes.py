"""bitsandbytes: NF4 and FP4 by blocks, with scales that may be quantised themselves, and int8 by outputs."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindbatch.checkpoint.error_lines import located, raise_if_any, shown
from mindbatch.checkpoint.formats.floats import Array
from mindbatch.checkpoint.json_object import parse_json_object
from mindbatch.checkpoint.quantised.eight_bits import BY_OUTPUT, INT8, EightBits
from mindbatch.checkpoint.quantised.layout import GroupedMatrix, Needed, QuantisedLayout, scale_errors
from mindbatch.checkpoint.quantised.method import QuantisationMethod, SettingsReader
from mindbatch.checkpoint.quantised.scheme import ByMark, ReadValues, Scheme, marked_modules
from mindbatch.checkpoint.quantised.small_floats import from_pairs, pair_table
from mindbatch.io.errors import CheckpointError

_FP4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3], np.float32) / np.float32(12)
_CODES = {
    "nf4": np.array(
        [
            -1,
            -0.6961928009986877,
            -0.5250730514526367,
            -0.39491748809814453,
            -0.28444138169288635,
            -0.18477343022823334,
            -0.09105003625154495,
            0,
            0.07958029955625534,
            0.16093020141124725,
            0.24611230194568634,
            0.33791524171829224,
            0.44070982933044434,
            0.5626170039176941,
            0.7229568362236023,
            1,
        ],
        np.float32,
    ),
    "fp4": np.concatenate((_FP4, 0 - _FP4)),
}
"""By the name of a type, the numbers of its codes.

Sources: Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs" (2023), for NF4; bitsandbytes for
FP4.
"""
_STATE = "weight.quant_state.bitsandbytes__"
_LARGEST_CODES, _MAX_COUNT, _LARGEST_OFFSET = 256, 1 << 31, 1e30


class EightBitRows(EightBits):
    """int8. weight_format: 0, for rows one after the other."""

    def needed(self, outputs: int, inputs: int) -> Mapping[str, Needed]:
        return {**super().needed(outputs, inputs), "weight_format": Needed(("U8",), (1,), is_optional=True)}

    def value_errors(self, small: Mapping[str, Array], outputs: int, inputs: int) -> Iterator[str]:
        yield from super().value_errors(small, outputs, inputs)
        if np.any(small.get("weight_format", 0)):
            yield f"weight_format: {int(small['weight_format'][0])}; must be 0"


@dataclass(frozen=True)
class FourBits(QuantisedLayout):
    """weight: two codes a byte, the first in the higher bits; blocks follow one another through all outputs.

    type_name: nf4 or fp4.
    shape: outputs and inputs.
    block_size: number of codes that weight.absmax has a scale for.
    nested_block_size: number of scales that weight.nested_absmax has a scale for: then they are codes of
        weight.nested_quant_map, which are multiplied by it and added to nested_offset. None for plain ones.
    """

    type_name: str
    shape: tuple[int, int]
    block_size: int
    nested_block_size: int | None = None
    nested_offset: float = 0.0

    main, marks, scales = "weight", "weight.absmax", "weight.absmax"
    group_size = None

    @property
    def title(self) -> str:
        return f"bitsandbytes, {self.type_name}, blocks of {self.block_size}"

    def size(self, main: tuple[int, ...]) -> tuple[int, int]:
        return self.shape

    def needed(self, outputs: int, inputs: int) -> Mapping[str, Needed]:
        codes = self.shape[0] * self.shape[1]
        blocks = -(-codes // self.block_size)
        table = Needed(("F32",), (len(_CODES[self.type_name]),))
        needed = {
            "weight": Needed(("U8",), (-(-codes // 2), 1), is_large=True),
            "weight.quant_map": table,
            f"{_STATE}{self.type_name}": Needed(("U8",), None),
            "weight.absmax": Needed(("F32",) if self.nested_block_size is None else ("U8",), (blocks,)),
        }
        if self.nested_block_size is not None:
            needed["weight.nested_absmax"] = Needed(("F32",), (-(-blocks // self.nested_block_size),))
            needed["weight.nested_quant_map"] = Needed(("F32",), (_LARGEST_CODES,))
        return needed

    def value_errors(self, small: Mapping[str, Array], outputs: int, inputs: int) -> Iterator[str]:
        if not np.array_equal(small["weight.quant_map"], _CODES[self.type_name]):
            yield f"weight.quant_map: is not the table of {self.type_name}"
        yield from scale_errors("weight.absmax", self._scales(small), is_zero_allowed=True)

    def _scales(self, tensors: Mapping[str, Array]) -> Array:
        scales = tensors["weight.absmax"]
        if self.nested_block_size is None:
            return scales
        of_blocks = np.repeat(tensors["weight.nested_absmax"], self.nested_block_size)[: len(scales)]
        widened: Array = tensors["weight.nested_quant_map"][scales] * of_blocks
        return widened + np.float32(self.nested_offset)

    def matrix(self, tensors: Mapping[str, Array], outputs: int, inputs: int) -> GroupedMatrix:
        pairs, scales, size = tensors["weight"].reshape(-1), self._scales(tensors), self.block_size
        table = pair_table(_CODES[self.type_name], high_first=True)

        def numbers_of(rows: slice) -> Array:
            first, last = rows.start * inputs, rows.stop * inputs
            numbers = from_pairs(pairs[first // 2 : -(-last // 2)], table)[first % 2 :][: last - first]
            of_blocks = np.repeat(scales[first // size : -(-last // size)], size)
            scaled: Array = numbers * of_blocks[first % size :][: last - first]
            return scaled.reshape(-1, inputs)

        ones = np.ones((outputs, 1), np.float32)
        return GroupedMatrix((outputs, inputs), numbers_of, ones, 0, unit=None)


class _FourBitScheme(Scheme):
    """The layout of each matrix is in a tensor beside it."""

    def __init__(self, type_name: str) -> None:
        self._type = type_name
        self.title = f"bitsandbytes, {type_name}"

    def layouts(self, names: Collection[str], values: ReadValues) -> Mapping[str, QuantisedLayout]:
        modules = marked_modules(FourBits(self._type, (0, 0), 1), names)
        if not modules:
            raise CheckpointError(
                f"{self.source} says {self.title}; no tensor is stored so, as *.weight.absmax"
            )
        states = {module: f"{module}.{_STATE}{self._type}" for module in modules}
        raise_if_any([f"tensor {shown(name)} is missing" for name in states.values() if name not in names])
        return {module: self._layout(name, values) for module, name in states.items()}

    def _layout(self, name: str, values: ReadValues) -> FourBits:
        with located(f"tensor {shown(name)}"):
            state = values(name)
            if state.dtype != np.uint8:
                raise CheckpointError("must be bytes of JSON")
            content = parse_json_object(state.tobytes(), "JSON")
            shape: Any = content.get("shape")
            offset = content.get("nested_offset", 0.0)
            counts: list[Any] = [content.get("blocksize"), content.get("nested_blocksize")]
            errors = [] if content.get("quant_type") == self._type else [f"quant_type must be {self._type}"]
            if not isinstance(shape, list) or len(shape) != 2 or not _are_counts(shape):
                errors.append("shape must be two positive numbers")
            if not _are_counts(counts[: 1 if counts[1] is None else 2]):
                errors.append("blocksize and nested_blocksize must be positive numbers")
            if type(offset) not in (int, float) or not abs(offset) < _LARGEST_OFFSET:
                errors.append("nested_offset must be a number")
            raise_if_any(errors)
            return FourBits(self._type, (shape[0], shape[1]), counts[0], counts[1], float(offset))


def _are_counts(values: Sequence[Any]) -> bool:
    return all(type(value) is int and 0 < value <= _MAX_COUNT for value in values)


def _read(settings: SettingsReader) -> Scheme:
    if settings.value("load_in_8bit"):
        return ByMark(EightBitRows(INT8, "SCB", BY_OUTPUT, divisor=127))
    settings.needs("bnb_4bit_quant_storage", ["uint8"])
    return _FourBitScheme(settings.choice("bnb_4bit_quant_type", {name: name for name in _CODES}))


METHODS = (QuantisationMethod("bitsandbytes", "bitsandbytes (NF4, FP4, int8)", _read),)
