"""Stacks of matrices in MXFP4: blocks of 32 numbers of four bits with a power of two in common, as floats.

Source: Open Compute Project, "OCP Microscaling Formats (MX) Specification", version 1.0, 2023.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.formats.floats import Array, FloatArray
from mindbatch.checkpoint.formats.stored import StoredTensor
from mindbatch.io.errors import CheckpointError

BLOCKS, SCALES = "_blocks", "_scales"
BYTES = 16  # of a block; the number in the lower bits of each comes first
BIAS = 127  # of the exponents, which are bytes
LARGEST = 252  # exponent with which all numbers are finite in float32; 255 stands for NaN
_MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_NUMBERS = np.concatenate((_MAGNITUDES, -_MAGNITUDES))
_PAIRS = np.stack((np.tile(_NUMBERS, 16), np.repeat(_NUMBERS, 16)), 1)  # of each byte


@dataclass(frozen=True)
class Mxfp4:
    """Storage layout of a folder's stacks."""

    title = "MXFP4"


class Mxfp4Folder(ModelFolder):
    """A whole model's folder, of which stacks of matrices [n, inputs, outputs] are given as floats.

    Stored are blocks [n, outputs, inputs / 32, 16] and scales [n, outputs, inputs / 32]. The numbers are
    those of bfloat16, and are read of one matrix at a time.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises:
        ConfigError: `path` is not a folder.
        CheckpointError: lists what is missing, damaged, or no such stack.
        """
        super().__init__(path)
        self.quantised = Mxfp4.title
        self._stacks = {name.removesuffix(BLOCKS): None for name in super().names if name.endswith(BLOCKS)}
        self._last: tuple[str, int, FloatArray] | None = None
        try:
            raise_if_any([*self._faults()])
        except CheckpointError:
            self.close()
            raise

    def _faults(self) -> Iterator[str]:
        if not self._stacks:
            yield f"{self.path}: config.json says {self.quantised}; no tensor is stored so, as *{BLOCKS}"
        for name in self._stacks:
            blocks, scales = super().info(f"{name}{BLOCKS}"), f"{name}{SCALES}"
            place = f"{self.path / super().file_name(blocks.name)}: tensor"
            if (
                blocks.dtype != "U8"
                or len(blocks.shape) != 4
                or blocks.shape[3] != BYTES
                or 0 in blocks.shape
            ):
                yield (
                    f"{place} {shown(blocks.name)} has dtype {blocks.dtype} and shape {[*blocks.shape]}; "
                    f"needed are U8 and [matrices, outputs, blocks, {BYTES}]"
                )
            elif not self.has(scales):
                yield f"{self.path}: tensor {shown(scales)} is missing; {self.quantised} needs it"
            elif (info := super().info(scales)).dtype != "U8" or info.shape != blocks.shape[:3]:
                yield (
                    f"{place} {shown(scales)} has dtype {info.dtype} and shape {[*info.shape]}; needed are "
                    f"U8 and {[*blocks.shape[:3]]}"
                )
            if self.has(name):
                yield f"{place} {shown(name)} is stored as {shown(blocks.name)}, too; one of them must go"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors that a model has; not of those that make a stack."""
        parts = {f"{name}{end}" for name in self._stacks for end in (BLOCKS, SCALES)}
        return (*(name for name in super().names if name not in parts), *self._stacks)

    def file_name(self, name: str) -> str:
        """Names the file of a tensor; of a stack, that of its blocks."""
        return super().file_name(f"{name}{BLOCKS}" if name in self._stacks else name)

    def info(self, name: str) -> StoredTensor:
        """Describes a tensor; a stack by its own shape."""
        if name not in self._stacks:
            return super().info(name)
        count, outputs, blocks, _ = super().info(f"{name}{BLOCKS}").shape
        return StoredTensor(name, "BF16", (count, blocks * 2 * BYTES, outputs), ())

    def floats(self, name: str, *, rows: slice | None = None, columns: slice | None = None) -> FloatArray:
        """Reads rows; of a stack those of one matrix, which count on from one matrix to the next."""
        if name not in self._stacks:
            return super().floats(name, rows=rows, columns=columns)
        _, inputs, _ = self.info(name).shape
        rows = slice(0, inputs) if rows is None else rows
        number, first = divmod(rows.start, inputs)
        if not first < first + rows.stop - rows.start <= inputs:
            raise ValueError(f"{rows} of a stack of matrices with {inputs} rows each; must lie inside one")
        matrix = self._matrix(name, number)[slice(None) if columns is None else columns]
        return matrix[:, first : first + rows.stop - rows.start].T

    def packable(self, name: str, *, rows: slice | None = None, columns: slice | None = None) -> Array:
        """Reads rows for packing, a stack's as float32."""
        give = self.floats if name in self._stacks else super().packable
        return give(name, rows=rows, columns=columns)

    def _matrix(self, name: str, number: int) -> FloatArray:
        """A matrix of a stack, [outputs, inputs]; it stays in memory until another one is asked for."""
        if self._last is None or self._last[:2] != (name, number):
            self._last = None
            blocks, scales = (self._bytes(f"{name}{end}", number) for end in (BLOCKS, SCALES))
            if scales.max() > LARGEST:
                raise CheckpointError(
                    f"{self.path}: tensor {shown(f'{name}{SCALES}')}: exponent {scales.max()} of matrix "
                    f"{number}; must be at most {LARGEST}"
                )
            numbers = _PAIRS[blocks].reshape(*scales.shape, -1)
            numbers *= np.ldexp(np.float32(1), scales.astype(np.int32) - BIAS)[..., None]
            self._last = name, number, numbers.reshape(len(numbers), -1)
        return self._last[2]

    def _bytes(self, name: str, number: int) -> Array:
        """Reads one matrix's bytes of a stacked tensor."""
        self._check_once(name)
        matrix = np.empty(super().info(name).shape[1:], np.uint8)
        self._tensors.file(name).read_into(name, number * matrix.size, matrix.data.cast("B"))
        return matrix
