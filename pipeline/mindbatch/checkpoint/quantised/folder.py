"""A model folder with quantised matrices, which are read as floats."""

import os
from collections.abc import Iterator

import numpy as np

from mindbatch.checkpoint.error_lines import collecting, located, raise_if_any, shown
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.formats.floats import FLOAT_DTYPES, Array
from mindbatch.checkpoint.formats.stored import StoredTensor
from mindbatch.checkpoint.quantised.layout import GroupedMatrix, Needed, QuantisedLayout, ScaledIntegers
from mindbatch.io.closing import closed_on_error
from mindbatch.io.errors import CheckpointError

_CODES = {
    "U8": np.uint8,
    "I8": np.int8,
    "I32": np.int32,
    "U32": np.uint32,
    "I64": np.int64,
    "F8_E4M3": np.uint8,
}


class QuantisedFolder(ModelFolder):
    """A whole model's folder, with each quantised matrix under the name of its weight.

    Opening reads the scales, zeros and groups, too, so that errors appear before the weights load.
    """

    def __init__(self, path: str | os.PathLike[str], layout: QuantisedLayout) -> None:
        """Raises:
        ConfigError: `path` is not a folder.
        CheckpointError: lists what is missing, damaged, or contradicts the layout.
        """
        super().__init__(path)
        self.quantised = layout.title
        self._layout = layout
        end = f"{layout.separator}{layout.marks}"
        marked = [name.removesuffix(end) for name in self.tensors if name.endswith(end)]
        self._modules = {f"{module}{layout.weight}": module for module in marked}
        self._parts = {
            self._part(module, end) for module in self._modules.values() for end in layout.needed(0, 0)
        }
        self._last: tuple[str, int | None, GroupedMatrix] | None = None
        with closed_on_error(self):
            self._check()

    def _part(self, module: str, end: str) -> str:
        return f"{module}{self._layout.separator}{end}"

    def _main(self, module: str) -> str:
        return self._part(module, self._layout.main)

    @property
    def names(self) -> tuple[str, ...]:
        plain = (name for name in super().names if name not in self._parts)
        return (*plain, *self._modules)

    def file_name(self, name: str) -> str:
        module = self._modules.get(name)
        return super().file_name(name if module is None else self._main(module))

    def info(self, name: str) -> StoredTensor:
        """Describes a tensor; a quantised matrix by its own shape and the dtype of its scales."""
        module = self._modules.get(name)
        if module is None:
            return super().info(name)
        if self._layout.is_stacked:
            return StoredTensor(name, "BF16", (*self._stack(module), *self._size(module)[::-1]))
        scales = super().info(self._part(module, self._layout.scales))
        return StoredTensor(name, scales.dtype, self._size(module))

    def _stack(self, module: str) -> tuple[int, ...]:
        """Number of matrices of a stack, in a tuple; empty for a single matrix."""
        return super().info(self._main(module)).shape[: int(self._layout.is_stacked)]

    def _size(self, module: str) -> tuple[int, int]:
        return self._layout.size(super().info(self._main(module)).shape[int(self._layout.is_stacked) :])

    def floats(
        self, name: str, *, rows: slice | None = None, columns: slice | None = None, is_widened: bool = True
    ) -> Array:
        """Reads rows; rows of a stack count on from one matrix to the next, and must be of one matrix."""
        if name not in self._modules:
            return super().floats(name, rows=rows, columns=columns, is_widened=is_widened)
        if self._layout.is_stacked:
            _, *size = self.info(name).shape
            number = 0 if rows is None else rows.start // size[0]
            first = number * size[0]
            within = None if rows is None else slice(rows.start - first, rows.stop - first)
            inputs, outputs = _bounds((*size,), within, columns)
            return self._matrix(name, number).floats(outputs, inputs).T
        return self._matrix(name).floats(*_bounds(self.info(name).shape, rows, columns))

    def has_integers(self, name: str) -> bool:
        """True for a matrix that is stored in 8 bits with a scale for each output."""
        return name in self._modules and not self._layout.is_stacked and self._matrix(name).has_row_scales

    def integers(self, name: str, rows: slice, columns: slice) -> ScaledIntegers:
        return self._matrix(name).integers(*_bounds(self.info(name).shape, rows, columns))

    def _matrix(self, name: str, number: int | None = None) -> GroupedMatrix:
        """The matrix, or one of a stack; its integers stay in memory until another one is read."""
        if self._last is None or self._last[:2] != (name, number):
            self._last = None
            module = self._modules[name]
            size = self._size(module)
            tensors = {
                end: self._values(self._part(module, end), number)
                for end, _ in self._stored_parts(module, size)
            }
            label = self._label(self._main(module))
            with located(label if number is None else f"{label}, matrix {number}"):
                self._last = name, number, self._layout.matrix(tensors, *size)
        return self._last[2]

    def _stored_parts(self, module: str, size: tuple[int, int]) -> Iterator[tuple[str, Needed]]:
        parts = self._layout.needed(*size).items()
        return ((end, needed) for end, needed in parts if self._part(module, end) in self.tensors)

    def _values(self, name: str, number: int | None = None) -> Array:
        """Reads a whole tensor, floats as float32, or its part of one matrix of a stack."""
        info = super().info(name)
        if info.dtype in FLOAT_DTYPES:
            return super().floats(name)
        values = np.empty(info.shape if number is None else info.shape[1:], _CODES[info.dtype])
        self.verified(name).read_into(name, (number or 0) * values.nbytes, values.data.cast("B"))
        return values

    def _check(self) -> None:
        """Raises CheckpointError with the errors of shapes and dtypes, or else with those of values."""
        if not self._modules:
            raise CheckpointError(
                f"{self.path}: config.json says {self.quantised}; no tensor is stored so, as "
                f"*{self._part('', self._layout.marks)}"
            )
        raise_if_any([error for module in self._modules.values() for error in self._head_errors(module)])
        raise_if_any([error for module in self._modules.values() for error in self._value_errors(module)])

    def _head_errors(self, module: str) -> Iterator[str]:
        main, layout = self._main(module), self._layout
        if main not in self.tensors:
            yield self._missing(main)
            return
        shape = super().info(main).shape
        if len(shape) != len(layout.dimensions) or 0 in shape:
            needed_dimensions = ", ".join(layout.dimensions)
            yield f"{self._label(main)} has shape {[*shape]}; needed is [{needed_dimensions}]"
            return
        if (plain := f"{module}{layout.weight}") != main and plain in self.tensors:
            yield f"{self._label(plain)} is stored as {shown(main)}, too; one of them must go"
        size = self._size(module)
        if error := layout.size_error(*size):
            yield f"{self._label(main)}: {error} for {self.quantised}"
        for end, needed in layout.needed(*size).items():
            needed = needed._replace(shape=(*self._stack(module), *needed.shape))
            yield from self._misfits(self._part(module, end), needed, size)

    def _misfits(self, name: str, needed: Needed, size: tuple[int, int]) -> Iterator[str]:
        if name not in self.tensors:
            if not needed.is_optional:
                yield self._missing(name)
            return
        info = super().info(name)
        if info.shape != needed.shape:
            yield (
                f"{self._label(name)} has shape {[*info.shape]}, needed is {[*needed.shape]} for {size[0]} "
                f"outputs and {size[1]} inputs ({self.quantised}, as config.json says)"
            )
        if info.dtype not in needed.dtypes:
            yield f"{self._label(name)} has dtype {info.dtype}, needed is {' or '.join(needed.dtypes)}"

    def _value_errors(self, module: str) -> list[str]:
        size, main = self._size(module), self._main(module)
        errors: list[str] = []
        with collecting(errors):
            small = {
                end: self._values(self._part(module, end))
                for end, needed in self._stored_parts(module, size)
                if not needed.is_large
            }
            errors += [f"{self._label(main)}: {error}" for error in self._layout.value_errors(small, *size)]
        return errors

    def _missing(self, name: str) -> str:
        return f"{self.path}: tensor {shown(name)} is missing; {self.quantised} needs it"

    def _label(self, name: str) -> str:
        return f"{self.path / super().file_name(name)}: tensor {shown(name)}"


def _bounds(shape: tuple[int, ...], *parts: slice | None) -> tuple[slice, slice]:
    """Rows and columns with both bounds. ValueError outside the matrix or with a step."""
    rows, columns = (
        slice(0, size) if part is None else slice(part.start or 0, size if part.stop is None else part.stop)
        for size, part in zip(shape, parts, strict=True)
    )
    for part, size in zip((rows, columns), shape, strict=True):
        if not 0 <= part.start <= part.stop <= size:
            raise ValueError(f"{part} of a matrix of shape {[*shape]}; must lie inside it")
    return rows, columns
