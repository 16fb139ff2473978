"""Merges a LoRA adapter into stored tensors as their rows are read: weight + scaling * B @ A.

LoRA: Hu et al. 2021, https://arxiv.org/abs/2106.09685. Everything is float32; the sum is rounded once, to the
dtype that is written. Any portion of the product has the very bits that the whole product has there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.formats.floats import FloatArray
from mindbatch.checkpoint.formats.open_file import OpenFiles
from mindbatch.checkpoint.lora.stored_array import StoredArray, read_array
from mindbatch.checkpoint.placement.regions import Region
from mindbatch.errors import CheckpointError

TILE = 512
"""Rows and columns of the product that are always made together, counted from its beginning."""


@dataclass(frozen=True, slots=True)
class Addition:
    """A region of scaling * B @ A that is added to a region of a stored tensor; all that a worker must know.

    place: in the stored tensor, counted in its view. product: the region of [outputs, inputs].
    inputs_first: rows of the tensor are inputs there, not outputs.
    """

    a: StoredArray
    b: StoredArray
    scaling: float
    place: Region
    product: Region
    inputs_first: bool = False

    @property
    def paths(self) -> set[str]:
        """The files of the matrices."""
        return self.a.paths | self.b.paths

    @property
    def along(self) -> tuple[int, int]:
        """The rows of the place, as the product counts them."""
        return self.product[1 if self.inputs_first else 0]

    @property
    def across(self) -> tuple[int, int]:
        """The columns of the place, as the product counts them."""
        return self.product[0 if self.inputs_first else 1]


class Adder:
    """Adds additions to rows. files: of the matrices.

    The last TILE rows of each product are kept for the rows that follow, which come a few at a time; so rows
    that are asked for in order are made once. forget() gives that memory back.
    """

    def __init__(self, files: OpenFiles) -> None:
        self._files = files
        self._matrices: dict[StoredArray, FloatArray] = {}
        self._strips: dict[object, tuple[int, FloatArray]] = {}

    def add(self, name: str, additions: Sequence[Addition], start: int, rows: FloatArray) -> None:
        """Adds, in place, to the rows from `start` on of the tensor `name`: float32 [rows, columns].

        CheckpointError when a matrix has changed since the planning, or a sum is too large for float32.
        """
        for addition in additions:
            (top, bottom), (left, right) = addition.place
            low, high = max(start, top), min(start + len(rows), bottom)
            if low >= high:
                continue
            offset = addition.along[0] - top
            for first, _ in tiles(low + offset, high + offset):
                strip = self._strip(addition, first)
                near, far = max(first, low + offset), min(first + TILE, high + offset)
                part = rows[near - offset - start : far - offset - start, left:right]
                _add(name, part, strip[near - first : far - first])

    def forget(self) -> None:
        """Gives the memory of products and matrices back."""
        self._strips.clear()
        self._matrices.clear()

    def _strip(self, addition: Addition, first: int) -> FloatArray:
        """Rows first..first + TILE, as the tensor has them, of the columns of the addition."""
        key = (addition.a, addition.b, addition.scaling, addition.inputs_first, addition.across)
        if key in self._strips and self._strips[key][0] == first:
            return self._strips[key][1]
        self._strips.pop(key, None)  # before the next is made: one of them may be large
        a, b = (self._matrix(matrix) for matrix in (addition.a, addition.b))
        size = a.shape[1] if addition.inputs_first else b.shape[0]
        along = (first, min(first + TILE, size))
        with np.errstate(over="ignore", invalid="ignore"):  # looked at below
            if addition.inputs_first:
                made = product(b, a, (addition.across, along), np.float32(addition.scaling))
                strip = np.ascontiguousarray(made.T)
            else:
                strip = product(b, a, (along, addition.across), np.float32(addition.scaling))
        if not np.isfinite(strip).all():
            raise CheckpointError(
                f"{addition.a.shards[0].path}: tensors {shown(addition.a.name)} and "
                f"{shown(addition.b.name)}: their product has values that are too large for F32"
            )
        self._strips[key] = first, strip
        return strip

    def _matrix(self, matrix: StoredArray) -> FloatArray:
        if matrix not in self._matrices:
            self._matrices[matrix] = read_array(matrix, self._files)
        return self._matrices[matrix]


def _add(name: str, rows: FloatArray, strip: FloatArray) -> None:
    try:
        with np.errstate(over="raise", invalid="ignore"):
            np.add(rows, strip, out=rows)
    except FloatingPointError:
        raise CheckpointError(
            f"tensor {shown(name)}: with the adapter values are too large for F32"
        ) from None


def product(b: FloatArray, a: FloatArray, region: Region, scaling: np.float32) -> FloatArray:
    """scaling * (b @ a) within the region, in whole tiles: products of other sizes may round otherwise."""
    (top, bottom), (left, right) = region
    found = np.empty((bottom - top, right - left), np.float32)
    for first, last in tiles(top, bottom):
        rows = np.ascontiguousarray(b[first : first + TILE])
        for start, end in tiles(left, right):
            tile = rows @ np.ascontiguousarray(a[:, start : start + TILE])
            low, high = max(first, top), min(last, bottom)
            near, far = max(start, left), min(end, right)
            part = tile[low - first : high - first, near - start : far - start]
            np.multiply(part, scaling, out=found[low - top : high - top, near - left : far - left])
    return found


def tiles(start: int, stop: int) -> Iterable[tuple[int, int]]:
    """The tiles that start..stop is in; the last one may reach beyond the end of the tensor."""
    return ((first, first + TILE) for first in range(start - start % TILE, stop, TILE))
