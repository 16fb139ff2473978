"""Matrices of codes with a scale for each group of inputs, in the layout of csrc/linear_codes.h."""

import numpy as np

from mindbatch.kernels.arrays import Arena, Array, FloatArray, PackedArray
from mindbatch.kernels.codes import FLOAT4_NUMBERS, Codes, CodeType

PANEL = 32  # outputs per packed panel: kPanel in csrc/variant_table.h
_IN_UNIT = 4  # neighbouring inputs of an output whose codes stand together


def coded_zeros(arena: Arena, kind: CodeType, outputs: int, inputs: int, segments: int) -> PackedArray:
    """Allocates a matrix of codes, [panels, segments, groups, bytes]."""
    assert kind.group is not None
    groups = inputs // segments // kind.group
    assert groups * kind.group * segments == inputs
    shape = (-(-outputs // PANEL), segments, groups, PANEL * kind.nbytes(kind.group))
    return PackedArray.over(arena.zeros(shape, np.dtype(np.uint8)), kind.kind)


def pack_codes(packed: Array, kind: CodeType, first_output: int, codes: Codes) -> None:
    """Packs codes from an output on; offsets are 0 if there are none."""
    numbers, scales, offsets = codes
    is_paired = kind.numbers == "float8"
    units = _units(numbers, kind, scales.shape[1])
    floats = [scales] if offsets is None else [scales, offsets]
    panels = packed.reshape(len(packed), -1, packed.shape[-1])
    done = 0
    while done < len(numbers):
        panel, column = divmod(first_output + done, PANEL)
        whole = 0 if column else (len(numbers) - done) // PANEL
        count = whole * PANEL or min(PANEL - column, len(numbers) - done)
        rows, columns = slice(done, done + count), slice(column, column + min(count, PANEL))
        of_rows = [values[rows] for values in floats]
        _write(panels[panel : panel + max(whole, 1)], columns, units[rows], of_rows, is_paired=is_paired)
        done += count


def _units(numbers: Array, kind: CodeType, groups: int) -> Array:
    """Numbers [n, inputs] -> units of four bytes, uint32 [n, groups, units]."""
    count = len(numbers)
    stored = np.ascontiguousarray(numbers).view(np.uint8)
    if kind.bits == 8:
        codes = stored ^ np.uint8(0x80) if kind.numbers == "int8" else stored
    else:
        halves = _CODES_OF[kind.numbers][stored].reshape(count, -1, 2, _IN_UNIT)
        codes = halves[:, :, 0] | halves[:, :, 1] << 4
    units = codes.reshape(count, -1).view(np.uint32)
    return units.reshape(count, groups, -1)


def _codes_of(numbers: dict[int, int]) -> Array:
    """By a number, as a byte, its code."""
    codes = np.zeros(256, np.uint8)
    codes[np.array([*numbers], np.int8).view(np.uint8)] = [*numbers.values()]
    return codes


_CODES_OF = {
    "int4": _codes_of({number: number + 8 for number in range(-8, 8)}),
    "float4": _codes_of({number: code for code, number in reversed([*enumerate(FLOAT4_NUMBERS)])}),
}


def _write(panels: Array, columns: slice, units: Array, floats: list[FloatArray], *, is_paired: bool) -> None:
    """Writes outputs [n, groups, ...] to these columns of panels [m, groups, bytes]."""
    count, groups, per_group = units.shape
    shape = (len(panels), count // len(panels), groups)
    first = per_group * PANEL * _IN_UNIT
    stored = panels[..., :first]
    if is_paired:
        # Of each four outputs the first two inputs of a unit, then the others.
        pairs = stored.view(np.uint16).reshape(len(panels), groups, per_group, PANEL // 4, 2, 4)
        outputs = np.arange(columns.start, columns.stop)
        values = units.reshape(*shape, per_group, 1).view(np.uint16)
        pairs[..., outputs // 4, :, outputs % 4] = values.swapaxes(0, 1)
    else:
        codes = stored.view(np.uint32).reshape(len(panels), groups, per_group, PANEL)
        codes[..., columns] = units.reshape(*shape, per_group).transpose(0, 2, 3, 1)
    for numbers in floats:
        lines = panels[..., first : first + PANEL * 4].view(np.float32)
        lines[..., columns] = numbers.reshape(shape).swapaxes(1, 2)
        first += PANEL * 4
