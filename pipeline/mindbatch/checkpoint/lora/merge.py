"""Merges an adapter into stored tensors as their rows are read; any portion has the bits of the whole merge.

Everything is float32; the sum is rounded once, to the dtype that is written.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mindbatch.checkpoint.error_lines import shown
from mindbatch.checkpoint.folders.model_folder import StoredWeights
from mindbatch.checkpoint.formats.floats import Array, FloatArray
from mindbatch.checkpoint.formats.open_file import OpenFiles
from mindbatch.checkpoint.formats.stored import StoredTensor
from mindbatch.checkpoint.lora.modules import TILE, LowRank, StoredArray, product, row_factors, tiles
from mindbatch.checkpoint.placement.regions import Region, StoredShard, oriented, slices_of
from mindbatch.io.closing import Closing
from mindbatch.io.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Addition:
    """A region of scaling * B @ A that is added to a region of a stored tensor.

    region: region of the stored tensor, counted in its view.
    product: region of B @ A, [outputs, inputs].
    inputs_first: True if the rows of the tensor are inputs, not outputs.
    magnitude, base: for DoRA, the norms that the outputs get, and the model's weight.
    """

    a: StoredArray
    b: StoredArray
    scaling: float
    region: Region
    product: Region
    inputs_first: bool = False
    magnitude: StoredArray | None = None
    base: StoredArray | None = None

    @property
    def paths(self) -> set[str]:
        magnitude = self.magnitude.paths if self.magnitude else set()
        return self.a.paths | self.b.paths | magnitude

    @property
    def along(self) -> tuple[int, int]:
        """The rows of the region, as the product counts them."""
        return self.product[1 if self.inputs_first else 0]

    @property
    def across(self) -> tuple[int, int]:
        """The columns of the region, as the product counts them."""
        return self.product[0 if self.inputs_first else 1]


@dataclass(frozen=True, slots=True)
class ArrayEdit:
    """A region of an array that replaces a region of a stored tensor; with a scaling, it is scaled and added.

    transposed: True if the tensor is the array's transpose.
    """

    array: StoredArray
    region: Region
    part: Region
    transposed: bool = False
    scaling: float | None = None

    @property
    def paths(self) -> set[str]:
        return self.array.paths


Edit = Addition | ArrayEdit


class Merger:
    """Applies edits to rows. files: files of the adapter and of the model.

    The last TILE rows of each product are kept for the rows that follow, a few at a time; so rows that are
    read in order are computed once. forget() frees that memory.
    """

    def __init__(self, files: OpenFiles) -> None:
        self._files = files
        self._arrays: dict[StoredArray, FloatArray] = {}
        self._factors: dict[object, FloatArray | None] = {}
        self._strips: dict[object, tuple[int, FloatArray]] = {}

    def apply(self, name: str, edits: Sequence[Edit], start: int, rows: FloatArray) -> None:
        """Changes the rows from `start` on of the tensor `name`: float32 [rows, columns].

        CheckpointError when an array has changed since the planning, or a sum is too large for float32.
        """
        for edit in edits:
            top, bottom = edit.region[0]
            low, high = max(start, top), min(start + len(rows), bottom)
            if low >= high:
                continue
            part = rows[low - start : high - start]
            if isinstance(edit, ArrayEdit):
                self._put(name, edit, low, high, part)
            else:
                self._add_product(name, edit, low, high, part)

    def forget(self) -> None:
        self._strips.clear()
        self._arrays.clear()
        self._factors.clear()

    def _put(self, name: str, edit: ArrayEdit, low: int, high: int, rows: FloatArray) -> None:
        """Replaces the rows low..high of the stored tensor by those of the array, or adds these."""
        whole = self._array(edit.array)[slices_of(edit.part)]
        top = edit.region[0][0]
        values = (whole.T if edit.transposed else whole)[low - top : high - top]
        target = rows if len(edit.region) == 1 else rows[:, slice(*edit.region[1])]
        if edit.scaling is None:
            target[...] = values
        else:
            _add(name, target, values * np.float32(edit.scaling))

    def _add_product(self, name: str, edit: Addition, low: int, high: int, rows: FloatArray) -> None:
        offset = edit.along[0] - edit.region[0][0]
        columns = rows[:, slice(*edit.region[1])]
        for first, _ in tiles(low + offset, high + offset):
            strip = self._strip(edit, first)
            near, far = max(first, low + offset), min(first + TILE, high + offset)
            part = columns[near - offset - low : far - offset - low]
            _add(name, part, strip[near - first : far - first])
            factors = self._row_factors(edit)
            if factors is not None:
                _scale(name, part, factors, (near, far), edit)

    def _strip(self, addition: Addition, first: int) -> FloatArray:
        """Computes the rows first..first + TILE of the addition, in the tensor's orientation."""
        key = (addition.a, addition.b, addition.scaling, addition.inputs_first, addition.across)
        if key in self._strips and self._strips[key][0] == first:
            return self._strips[key][1]
        self._strips.pop(key, None)  # before the next is made: one of them may be large
        a, b = (self._array(array) for array in (addition.a, addition.b))
        size = a.shape[1] if addition.inputs_first else b.shape[0]
        along = (first, min(first + TILE, size))
        region = oriented((along, addition.across), addition.inputs_first)
        with np.errstate(over="ignore", invalid="ignore"):  # looked at below
            delta = product(b, a, region, np.float32(addition.scaling))
        strip = np.ascontiguousarray(delta.T) if addition.inputs_first else delta
        if not np.isfinite(strip).all():
            raise CheckpointError(
                f"{addition.a.shards[0].path}: tensors {shown(addition.a.name)} and "
                f"{shown(addition.b.name)}: their product has values that are too large for F32"
            )
        self._strips[key] = first, strip
        return strip

    def _row_factors(self, edit: Addition) -> FloatArray | None:
        """Computes the factors of the outputs for DoRA, from norms of full rows of the weight; or None."""
        if edit.magnitude is None or edit.base is None:
            return None
        if edit.base not in self._factors:
            a, b, magnitude = (self._array(array) for array in (edit.a, edit.b, edit.magnitude))
            added = LowRank(a, b, edit.scaling, None, magnitude)
            base = edit.base
            self._factors[base] = row_factors(added, lambda start, stop: base.read(self._files, start, stop))
        return self._factors[edit.base]

    def _array(self, array: StoredArray) -> FloatArray:
        if array not in self._arrays:
            self._arrays[array] = array.read(self._files)
        return self._arrays[array]


def _add(name: str, rows: FloatArray, added: FloatArray) -> None:
    try:
        with np.errstate(over="raise", invalid="ignore"):
            np.add(rows, added, out=rows)
    except FloatingPointError:
        raise CheckpointError(
            f"tensor {shown(name)}: with the adapter values are too large for F32"
        ) from None


def _scale(name: str, rows: FloatArray, factors: FloatArray, along: tuple[int, int], edit: Addition) -> None:
    """Multiplies each output by its factor: rows of the tensor, or columns where its inputs come first."""
    of_rows = factors[slice(*(edit.across if edit.inputs_first else along))]
    with np.errstate(over="ignore", invalid="ignore"):
        np.multiply(rows, of_rows[None, :] if edit.inputs_first else of_rows[:, None], out=rows)
    if not np.isfinite(rows).all():
        raise CheckpointError(f"tensor {shown(name)}: scaled to the magnitudes (DoRA), values are not finite")


class MergedWeights(Closing):
    """`StoredWeights` of a folder with a merged adapter, bit for bit as `reshard lora.merge=` writes them.

    Only what is read is merged. Within `with` files stay open.
    """

    def __init__(
        self,
        folder: StoredWeights,
        edits_of: Callable[[StoredShard], Sequence[Edit]],
        stored: Mapping[str, StoredShard],
    ) -> None:
        """edits_of: `LoraPlan.edits` of the whole model. stored: the model's tensors in the folder."""
        self._folder = folder
        self.path, self.shard, self.stages, self.names = (
            folder.path,
            folder.shard,
            folder.stages,
            folder.names,
        )
        self._edits_of = edits_of
        self._stored = stored
        self._files = OpenFiles()
        self._merger = Merger(self._files)
        self._last = ""

    def file_name(self, name: str) -> str:
        return self._folder.file_name(name)

    def info(self, name: str) -> StoredTensor:
        return self._folder.info(name)

    def floats(
        self, name: str, *, rows: slice | None = None, columns: slice | None = None, is_widened: bool = True
    ) -> Array:
        """The requested values, merged.

        CheckpointError, besides those of the folder, when the adapter has changed since it was opened, or a
        sum is too large for float32.
        """
        is_merged = name in self._stored and len(self.info(name).shape) <= 2  # adapters have no stacks
        # Checked before norms are taken of it.
        values = self._folder.floats(name, rows=rows, columns=columns, is_widened=is_widened or is_merged)
        if not is_merged:
            return values
        region = _region(self.info(name).shape, rows, columns)
        edits = self._edits_of(self._stored[name].within(region))
        if edits and name != self._last:
            self._merger.forget()
            self._last = name
        self._merger.apply(name, edits, 0, values)
        return values

    def close(self) -> None:
        """Closes the adapter's files and frees memory; the folder stays open."""
        self._merger.forget()
        self._files.close()


def _region(shape: tuple[int, ...], *parts: slice | None) -> Region:
    """Converts slices of a stored tensor to a region. parts: rows, and columns of a matrix; None for all."""
    return tuple(
        (0, size) if part is None else part.indices(size)[:2]
        for part, size in zip(parts, shape, strict=False)
    )
