"""What an adapter adds to a stored tensor, row by row, for one that is read in bands and never held whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.folders.digests import started_digest
from mindbatch.checkpoint.formats.floats import FLOAT_DTYPES, widened
from mindbatch.checkpoint.formats.open_file import open_tensor_file
from mindbatch.checkpoint.formats.stored import StoredFile
from mindbatch.checkpoint.lora.adapter import Matrix
from mindbatch.checkpoint.lora.merge import TILE, product, tiles
from mindbatch.checkpoint.placement.regions import Region
from mindbatch.errors import CheckpointError


class StoredMatrix(NamedTuple):
    """A matrix of an adapter, and its SHA-256 (as in digests.json) when the reshard was planned."""

    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class Addition:
    """A box of scaling * B @ A that is added to a box of a stored tensor; all that a worker must know of it.

    path: the file of the matrices. place: the box in the stored tensor, by the shape in which its rows are
    counted. product: the box of [outputs, inputs]. turned: rows of the tensor are inputs there, not outputs.
    """

    path: str
    a: StoredMatrix
    b: StoredMatrix
    scaling: float
    place: Region
    product: Region
    turned: bool = False

    @property
    def along(self) -> tuple[int, int]:
        """The rows of the place, as the product counts them."""
        return self.product[1 if self.turned else 0]

    @property
    def across(self) -> tuple[int, int]:
        """The columns of the place, as the product counts them."""
        return self.product[0 if self.turned else 1]


class Adder:
    """Adds additions to rows.

    The last TILE rows of each product are kept for the bands that follow, which are lower than that; so rows
    that are asked for in order are made once. forget() gives that memory back.
    """

    def __init__(self) -> None:
        self._files: dict[str, StoredFile] = {}
        self._matrices: dict[tuple[str, StoredMatrix], Matrix] = {}
        self._strips: dict[object, tuple[int, Matrix]] = {}

    def add(self, name: str, additions: Sequence[Addition], start: int, rows: Matrix) -> None:
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

    def close(self) -> None:
        """Closes the files."""
        self.forget()
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _strip(self, addition: Addition, first: int) -> Matrix:
        """Rows first..first + TILE, as the tensor has them, of the columns of the addition."""
        key = (addition.path, addition.a, addition.b, addition.scaling, addition.turned, addition.across)
        if key in self._strips and self._strips[key][0] == first:
            return self._strips[key][1]
        self._strips.pop(key, None)  # before the next is made: one of them may be large
        a, b = (self._matrix(addition.path, matrix) for matrix in (addition.a, addition.b))
        size = a.shape[1] if addition.turned else b.shape[0]
        along = (first, min(first + TILE, size))
        with np.errstate(over="ignore", invalid="ignore"):  # looked at below
            if addition.turned:
                made = product(b, a, (addition.across, along), np.float32(addition.scaling))
                strip = np.ascontiguousarray(made.T)
            else:
                strip = product(b, a, (along, addition.across), np.float32(addition.scaling))
        if not np.isfinite(strip).all():
            raise CheckpointError(
                f"{addition.path}: tensors {shown(addition.a.name)} and {shown(addition.b.name)}: their "
                "product has values that are too large for F32"
            )
        self._strips[key] = first, strip
        return strip

    def _matrix(self, path: str, matrix: StoredMatrix) -> Matrix:
        if (path, matrix) not in self._matrices:
            self._matrices[path, matrix] = self._read(path, matrix)
        return self._matrices[path, matrix]

    def _read(self, path: str, matrix: StoredMatrix) -> Matrix:
        if path not in self._files:
            self._files[path] = open_tensor_file(Path(path))
        info = self._files[path].info(matrix.name)
        data = bytearray(info.nbytes)
        self._files[path].read_into(matrix.name, 0, memoryview(data))
        digest = started_digest(info.dtype, info.shape)
        digest.update(data)
        if digest.hexdigest() != matrix.digest or info.dtype not in FLOAT_DTYPES:
            raise CheckpointError(f"{path}: tensor {shown(matrix.name)} has changed meanwhile")
        return widened(data, info.dtype, info.shape)


def _add(name: str, rows: Matrix, strip: Matrix) -> None:
    try:
        with np.errstate(over="raise", invalid="ignore"):
            np.add(rows, strip, out=rows)
    except FloatingPointError:
        raise CheckpointError(
            f"tensor {shown(name)}: with the adapter values are too large for F32"
        ) from None
