"""A model folder with quantised matrices, which are read as floats."""

import math
import os
from collections.abc import Iterator
from threading import local
from typing import NamedTuple

import numpy as np

from mindbatch.checkpoint.error_lines import collecting, located, raise_if_any, shown
from mindbatch.checkpoint.folders.model_folder import CodedWeights, ModelFolder
from mindbatch.checkpoint.formats.floats import FLOAT_DTYPES, Array, bounded
from mindbatch.checkpoint.formats.stored import StoredTensor
from mindbatch.checkpoint.quantised.layout import GroupedMatrix, Needed, QuantisedLayout
from mindbatch.checkpoint.quantised.scheme import Scheme
from mindbatch.io.closing import closed_on_error
from mindbatch.io.errors import CheckpointError
from mindbatch.kernels.codes import Codes, CodeType

_CODES = {
    "U8": np.uint8,
    "I8": np.int8,
    "I32": np.int32,
    "U32": np.uint32,
    "I64": np.int64,
    "F8_E4M3": np.uint8,
    "F8_E8M0": np.uint8,
}
_MAX_FEW = 1 << 20
_OF_CACHES = (
    *(".k_scale", ".v_scale", ".k_bias", ".v_bias", ".k_proj.output_scale", ".v_proj.output_scale"),
    *(".kv_cache_scale", ".kv_cache_offset"),
    *(f".fa_{of}.{end}" for of in "qkv" for end in ("scale", "offset")),
)
"""Ends of the names of scales that say how attention is rounded, its keys and values."""


class _StoredMatrix(NamedTuple):
    """module: what the names of its tensors begin with."""

    module: str
    layout: QuantisedLayout

    def part(self, end: str) -> str:
        """The name of one of its tensors."""
        return f"{self.module}{self.layout.separator}{end}"

    @property
    def main(self) -> str:
        return self.part(self.layout.main)

    @property
    def plain(self) -> str:
        """The name that the model knows it by."""
        return f"{self.module}{self.layout.weight}"


class _LastRead(local):
    """The matrix that a thread has read last."""

    matrix: tuple[str, int | None, GroupedMatrix] | None = None


class QuantisedFolder(CodedWeights, ModelFolder):
    """A whole model's folder, with each quantised matrix under the name of its weight.

    Opening reads the scales, zeros and groups, too, so that errors appear before the weights load.
    """

    def __init__(self, path: str | os.PathLike[str], scheme: Scheme) -> None:
        """Raises:
        ConfigError: `path` is not a folder.
        CheckpointError: lists what is missing, damaged, or contradicts the scheme.
        """
        super().__init__(path)
        self.quantised = scheme.title
        self._of_thread = _LastRead()
        self._source = scheme.source
        with closed_on_error(self):
            with located(self.path):
                layouts = scheme.layouts(self.tensors, self._few_values)
            stored = [_StoredMatrix(*item) for item in layouts.items()]
            self._matrices = {matrix.plain: matrix for matrix in stored}
            self._code_types: dict[str, CodeType | None] = {}
            self._parts = {
                matrix.part(end)
                for matrix in stored
                for end, needed in matrix.layout.needed(0, 0).items()
                if not needed.is_own
            }
            self._of_caches = {name for name in self.tensors if name.endswith(_OF_CACHES)}
            self._check()
            self.notes += (*self._not_rounded(),)
            self.stored_bits = self._stored_bits()

    @property
    def names(self) -> tuple[str, ...]:
        hidden = self._parts | self._of_caches
        return (*(name for name in super().names if name not in hidden), *self._matrices)

    def file_name(self, name: str) -> str:
        matrix = self._matrices.get(name)
        return super().file_name(name if matrix is None else matrix.main)

    def info(self, name: str) -> StoredTensor:
        """Describes a tensor; a quantised matrix by its own shape and the dtype of its scales."""
        matrix = self._matrices.get(name)
        if matrix is None:
            return super().info(name)
        if matrix.layout.is_stacked:
            return StoredTensor(name, "BF16", (*self._stack(matrix), *self._size(matrix)[::-1]))
        dtype = super().info(matrix.part(matrix.layout.scales)).dtype
        return StoredTensor(name, dtype if dtype in FLOAT_DTYPES else "BF16", self._size(matrix))

    def _stack(self, matrix: _StoredMatrix) -> tuple[int, ...]:
        """Number of matrices of a stack, in a tuple; empty for a single matrix."""
        return super().info(matrix.main).shape[: int(matrix.layout.is_stacked)]

    def _size(self, matrix: _StoredMatrix) -> tuple[int, int]:
        return matrix.layout.size(super().info(matrix.main).shape[int(matrix.layout.is_stacked) :])

    def floats(
        self, name: str, *, rows: slice | None = None, columns: slice | None = None, is_widened: bool = True
    ) -> Array:
        """Reads rows; rows of a stack count on from one matrix to the next, and must be of one matrix."""
        if name not in self._matrices:
            return super().floats(name, rows=rows, columns=columns, is_widened=is_widened)
        if self._matrices[name].layout.is_stacked:
            _, *size = self.info(name).shape
            number = 0 if rows is None else rows.start // size[0]
            first = number * size[0]
            within = None if rows is None else slice(rows.start - first, rows.stop - first)
            inputs, outputs = bounded((*size,), within, columns)
            return self._matrix(name, number).floats(outputs, inputs).T
        return self._matrix(name).floats(*bounded(self.info(name).shape, rows, columns))

    def code_type(self, name: str) -> CodeType | None:
        return self._code_types.get(name)

    def codes(
        self, name: str, outputs: slice, inputs: slice, kind: CodeType, number: int | None = None
    ) -> Codes:
        rows, columns = bounded(self._size(self._matrices[name]), outputs, inputs)
        return self._matrix(name, number).codes_of(rows, columns, kind)

    def _matrix(self, name: str, number: int | None = None) -> GroupedMatrix:
        """The matrix, or one of a stack; its integers stay in memory until the thread reads another one."""
        last = self._of_thread.matrix
        if last is None or last[:2] != (name, number):
            self._of_thread.matrix = None
            matrix = self._matrices[name]
            tensors = {
                end: self._as_needed(matrix.part(end), needed, number)
                for end, needed in self._stored_parts(matrix)
            }
            label = self._label(matrix.main)
            with located(label if number is None else f"{label}, matrix {number}"):
                last = name, number, matrix.layout.matrix(tensors, *self._size(matrix))
            self._of_thread.matrix = last
        return last[2]

    def _stored_parts(self, matrix: _StoredMatrix) -> Iterator[tuple[str, Needed]]:
        parts = matrix.layout.needed(*self._size(matrix)).items()
        return ((end, needed) for end, needed in parts if matrix.part(end) in self.tensors)

    def _as_needed(self, name: str, needed: Needed, number: int | None = None) -> Array:
        values = self._values(name, number)
        return values if needed.is_large or needed.shape is None else values.reshape(needed.shape)

    def _values(self, name: str, number: int | None = None) -> Array:
        """Reads a whole tensor, floats as float32, or its part of one matrix of a stack."""
        info = super().info(name)
        if info.dtype in FLOAT_DTYPES:
            return super().floats(name)
        if info.dtype not in _CODES:
            raise CheckpointError(f"{self._label(name)} has dtype {info.dtype}, needed are numbers")
        values = np.empty(info.shape if number is None else info.shape[1:], _CODES[info.dtype])
        self.verified(name).read_into(name, (number or 0) * values.nbytes, values.data.cast("B"))
        return values

    def _few_values(self, name: str) -> Array:
        """Reads a tensor that says how others are stored."""
        if (size := super().info(name).nbytes) > _MAX_FEW:
            raise CheckpointError(f"has {size:,} bytes; at most {_MAX_FEW:,} may say how a matrix is stored")
        return self._values(name)

    def _check(self) -> None:
        """Raises CheckpointError with the errors of shapes and dtypes, or else with those of values."""
        raise_if_any([error for matrix in self._matrices.values() for error in self._head_errors(matrix)])
        raise_if_any([error for matrix in self._matrices.values() for error in self._value_errors(matrix)])

    def _head_errors(self, matrix: _StoredMatrix) -> Iterator[str]:
        main, layout = matrix.main, matrix.layout
        if main not in self.tensors:
            yield self._missing(matrix, main)
            return
        shape = super().info(main).shape
        if len(shape) != len(layout.dimensions) or 0 in shape:
            needed_dimensions = ", ".join(layout.dimensions)
            yield f"{self._label(main)} has shape {[*shape]}; needed is [{needed_dimensions}]"
            return
        if matrix.plain != main and matrix.plain in self.tensors:
            yield f"{self._label(matrix.plain)} is stored as {shown(main)}, too; one of them must go"
        if error := layout.size_error(*self._size(matrix)):
            yield f"{self._label(main)}: {error} for {layout.title}"
        for end, needed in layout.needed(*self._size(matrix)).items():
            if needed.shape is not None:
                needed = needed._replace(shape=(*self._stack(matrix), *needed.shape))
            yield from self._misfits(matrix, matrix.part(end), needed)

    def _misfits(self, matrix: _StoredMatrix, name: str, needed: Needed) -> Iterator[str]:
        if name not in self.tensors:
            if not needed.is_optional:
                yield self._missing(matrix, name)
            return
        info, (outputs, inputs) = super().info(name), self._size(matrix)
        if needed.shape is not None and not _fits(info.shape, needed):
            yield (
                f"{self._label(name)} has shape {[*info.shape]}, needed is {[*needed.shape]} for {outputs} "
                f"outputs and {inputs} inputs ({matrix.layout.title}, as {self._source} says)"
            )
        if info.dtype not in needed.dtypes:
            yield f"{self._label(name)} has dtype {info.dtype}, needed is {' or '.join(needed.dtypes)}"

    def _value_errors(self, matrix: _StoredMatrix) -> list[str]:
        errors: list[str] = []
        with collecting(errors):
            small = {
                end: self._as_needed(matrix.part(end), needed)
                for end, needed in self._stored_parts(matrix)
                if not needed.is_large
            }
            label, size = self._label(matrix.main), self._size(matrix)
            errors += [f"{label}: {error}" for error in matrix.layout.value_errors(small, *size)]
            if not errors:
                self._code_types[matrix.plain] = matrix.layout.code_type(small, size[1])
        return errors

    def _stored_bits(self) -> float:
        nbytes = sum(
            super(QuantisedFolder, self).info(name).nbytes for name in self._parts & self.tensors.keys()
        )
        return 8 * nbytes / sum(math.prod(self.info(name).shape) for name in self._matrices)

    def _not_rounded(self) -> Iterator[str]:
        """Says which scales are without effect, as activations, keys and values stay floats."""
        rounded = sum(
            any(needed.of_activations for _, needed in self._stored_parts(matrix))
            for matrix in self._matrices.values()
        )
        if rounded:
            yield (
                f"{self.path}: activations are not rounded with the folder's scales, which {rounded} of "
                f"{len(self._matrices)} quantised matrices have"
            )
        if self._of_caches:
            yield (
                f"{self.path}: {len(self._of_caches)} scales of keys, values and attention are without "
                "effect, as these are not rounded"
            )

    def _missing(self, matrix: _StoredMatrix, name: str) -> str:
        return f"{self.path}: tensor {shown(name)} is missing; {matrix.layout.title} needs it"

    def _label(self, name: str) -> str:
        return f"{self.path / super().file_name(name)}: tensor {shown(name)}"


def _fits(shape: tuple[int, ...], needed: Needed) -> bool:
    if needed.is_large or needed.shape is None:
        return shape == needed.shape
    return [size for size in shape if size != 1] == [size for size in needed.shape if size != 1]
