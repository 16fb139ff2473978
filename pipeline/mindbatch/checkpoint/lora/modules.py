"""Modules of an adapter: their stored arrays, and their effect, a low-rank addition or a full weight."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from mindbatch.checkpoint.error_lines import shown
from mindbatch.checkpoint.folders.digests import digest_of
from mindbatch.checkpoint.folders.tensor_set import StoredSegment, TensorSet, stored_segments
from mindbatch.checkpoint.formats.floats import FLOAT_DTYPES, FloatArray, read_region, widened
from mindbatch.checkpoint.formats.open_file import OpenFiles
from mindbatch.checkpoint.formats.stored import StoredFile
from mindbatch.checkpoint.lora.names import Role
from mindbatch.checkpoint.placement.regions import (
    RankFiles,
    Region,
    Segment,
    Shape,
    full_region,
    intersection,
    oriented,
    slices_of,
)
from mindbatch.io.errors import CheckpointError


class ArrayShard(NamedTuple):
    """A segment of a stored tensor, counted in its view, that is a region of an array.

    digest: SHA-256 of the stored tensor (as in digests.json) when the adapter was opened, to notice changes;
    None for weights of the model.
    """

    path: str
    name: str
    view: Shape
    segment: Segment
    digest: str | None = None

    def read(self, file: StoredFile, whole: Region) -> FloatArray:
        """The values of a region of the array, within that of the shard."""
        local = self.segment.local_at(whole)
        if self.digest is None:
            values = read_region(file, self.name, local, self.view, is_widened=True)
        else:
            values = self._verified(file)[slices_of(local)]
        return values.T if self.segment.transposed else values

    def _verified(self, file: StoredFile) -> FloatArray:
        """Reads the whole stored tensor, and checks the digest of the same bytes."""
        info = file.info(self.name)
        data = np.empty(info.nbytes, np.uint8).data
        file.read_into(self.name, 0, data)
        is_same = digest_of(info.dtype, info.shape, [data]) == self.digest
        if not is_same or info.dtype not in FLOAT_DTYPES:
            raise CheckpointError(f"{self.path}: tensor {shown(self.name)} has changed meanwhile")
        return widened(data, info.dtype, self.view)


class StoredArray(NamedTuple):
    """Shards that together are a matrix or vector. name: name of its tensor."""

    name: str
    shape: Shape
    shards: tuple[ArrayShard, ...]

    @property
    def paths(self) -> set[str]:
        return {shard.path for shard in self.shards}

    def read(self, files: OpenFiles, start: int = 0, stop: int | None = None) -> FloatArray:
        """Reads the rows start..stop, by default all.

        CheckpointError when a shard has changed since the adapter was opened.
        """
        region = ((start, self.shape[0] if stop is None else stop), *full_region(self.shape[1:]))
        values = np.empty([stop - start for start, stop in region], np.float32)
        for shard in self.shards:
            common = intersection(shard.segment.whole, region)
            if common is not None:
                local = tuple(
                    (low - start, high - start)
                    for (low, high), (start, _) in zip(common, region, strict=True)
                )
                values[slices_of(local)] = shard.read(files[shard.path], common)
        return values


def stored_array(
    name: str,
    shape: Shape,
    segments: Iterable[StoredSegment],
    noted_digest: Callable[[TensorSet, str], str | None] = lambda tensors, name: None,
    *,
    inputs_first: bool = False,
) -> StoredArray:
    """Locates a full tensor, as [outputs, inputs], in the files that have segments of it.

    noted_digest: function that returns the digest of a stored tensor, to notice changes.
    inputs_first: True if `shape` is [inputs, outputs].
    """
    shards = []
    for tensors, stored, view, segment in segments:
        path = str(tensors.file(stored).path.absolute())
        whole = oriented(segment.whole, inputs_first)
        in_model = segment._replace(whole=whole, transposed=inputs_first != segment.transposed)
        shards.append(ArrayShard(path, stored, view, in_model, noted_digest(tensors, stored)))
    return StoredArray(name, shape[::-1] if inputs_first else shape, tuple(shards))


def base_finder(files: RankFiles, sets: Sequence[TensorSet]) -> Callable[[str, bool], StoredArray]:
    """Finds a weight of the model, given its name and whether its full tensor is [inputs, outputs]."""
    segments = stored_segments(files, sets)
    return lambda name, inputs_first: stored_array(
        name, files.shapes[name], segments[name], inputs_first=inputs_first
    )


TILE = 512
"""Rows and columns of the product that are always made together, counted from its beginning."""


@dataclass(frozen=True)
class LowRank:
    """The arrays of a low-rank addition in float32, oriented as below however the model is stored.

    y = W x becomes W x + scaling * (b (a x) + bias). With a magnitude (DoRA), row o of W + scaling * b a is
    multiplied by magnitude[o] / its norm, and the module's own bias stays as it is.

    a: [rank, inputs]; the inputs of an embedding are its vocabulary, x being one-hot. b: [outputs, rank].
    bias: [outputs]; scaled as well. magnitude: [outputs].
    """

    a: FloatArray
    b: FloatArray
    scaling: float
    bias: FloatArray | None = None
    magnitude: FloatArray | None = None


def product(b: FloatArray, a: FloatArray, region: Region, scaling: np.float32) -> FloatArray:
    """scaling * (b @ a) within the region, in whole tiles: products of other sizes may round otherwise."""
    (top, bottom), (left, right) = region
    out = np.empty((bottom - top, right - left), np.float32)
    for first, last in tiles(top, bottom):
        rows = np.ascontiguousarray(b[first : first + TILE])
        for start, end in tiles(left, right):
            tile = rows @ np.ascontiguousarray(a[:, start : start + TILE])
            low, high = max(first, top), min(last, bottom)
            near, far = max(start, left), min(end, right)
            part = tile[low - first : high - first, near - start : far - start]
            np.multiply(part, scaling, out=out[low - top : high - top, near - left : far - left])
    return out


def tiles(start: int, stop: int) -> Iterable[tuple[int, int]]:
    """The tiles that start..stop is in; the last one may reach beyond the end of the tensor."""
    return ((first, first + TILE) for first in range(start - start % TILE, stop, TILE))


def merged_weight(weight: FloatArray, added: LowRank) -> FloatArray:
    """Computes a whole merged weight, [outputs, inputs], with its rows scaled for DoRA."""
    factors = row_factors(added, lambda start, stop: weight[start:stop])
    delta = product(added.b, added.a, full_region(weight.shape), np.float32(added.scaling))
    np.add(weight, delta, out=delta)
    return delta if factors is None else np.multiply(delta, factors[:, None], out=delta)


def row_factors(added: LowRank, weight: Callable[[int, int], FloatArray]) -> FloatArray | None:
    """Computes the factors of the sum's rows (DoRA), [outputs]: magnitude / norm; None without a magnitude.

    weight: function that reads the rows start..stop of the model's weight, float32 [rows, inputs]; it is
    called for TILE rows at once.
    """
    if added.magnitude is None:
        return None
    (outputs, _), (_, inputs) = added.b.shape, added.a.shape
    squares = np.zeros(outputs, np.float64)
    for first, last in tiles(0, outputs):
        last = min(last, outputs)
        rows = weight(first, last)
        for start, end in tiles(0, inputs):
            end = min(end, inputs)
            region = ((first, last), (start, end))
            delta = product(added.b, added.a, region, np.float32(added.scaling))
            np.add(rows[:, start:end], delta, out=delta)
            squares[first:last] += np.square(delta, dtype=np.float64).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return added.magnitude / np.sqrt(squares).astype(np.float32)


class ModuleKind(Enum):
    """Kind of a module: with vectors or tokens as inputs, or with a full weight of the adapter."""

    LINEAR = "linear"
    EMBEDDING = "embedding"
    WHOLE = "whole"


@dataclass(frozen=True)
class AdaptedModule:
    """A module of an adapter; its arrays are read on request.

    module: name without PEFT's prefix.
    arrays: stored arrays by role.
    scaling: factor of the product; 0 for a whole weight.
    of_tokens: True for an embedding, whose inputs are tokens.
    """

    module: str
    arrays: Mapping[Role, StoredArray]
    scaling: float = 0.0
    of_tokens: bool = False

    @property
    def kind(self) -> ModuleKind:
        if self.saved is not None:
            return ModuleKind.WHOLE
        return ModuleKind.EMBEDDING if self.of_tokens else ModuleKind.LINEAR

    @property
    def identity(self) -> list[str | float]:
        """Lists everything that has an effect, as JSON: name, scaling, digests of the stored tensors."""
        arrays = sorted((role.value, array) for role, array in self.arrays.items())
        digests = [f"{role} {shard.digest}" for role, array in arrays for shard in array.shards]
        return [self.module, self.kind.value, self.scaling, *digests]

    @property
    def rank(self) -> int:
        """Number of rows of A; 0 for a whole weight, even with matrices."""
        return 0 if self.kind is ModuleKind.WHOLE else self.arrays[Role.A].shape[0]

    @property
    def inputs(self) -> int:
        """Number of columns of A: of the module's inputs, or of tokens."""
        return self.arrays[Role.A].shape[1]

    @property
    def outputs(self) -> int:
        return self.arrays[Role.B].shape[0]

    @property
    def saved(self) -> StoredArray | None:
        """The weight that replaces the model's, if there is one, before anything is added to it."""
        return self.arrays.get(Role.WEIGHT, self.arrays.get(Role.BASE))

    @property
    def has_bias(self) -> bool:
        return Role.BIAS in self.arrays

    @property
    def has_magnitude(self) -> bool:
        """True if the rows are normalised (DoRA)."""
        return Role.MAGNITUDE in self.arrays

    def low_rank(self, files: OpenFiles | None = None) -> LowRank:
        """Reads the arrays of a LINEAR or EMBEDDING module. files: files that many modules share.

        CheckpointError when one has changed since the adapter was opened.
        """
        read = self._read(files)
        return LowRank(
            read[Role.A], read[Role.B], self.scaling, read.get(Role.BIAS), read.get(Role.MAGNITUDE)
        )

    def whole_weight(self, files: OpenFiles | None = None) -> FloatArray:
        """Reads the weight of a WHOLE module, in the shape of the model's; otherwise as `low_rank`.

        PEFT saves the embedding below adapted matrices as well, and then takes it instead of the model's.
        """
        read = self._read(files)
        if Role.WEIGHT in read:
            return read[Role.WEIGHT]
        added = LowRank(read[Role.A], read[Role.B], self.scaling, None, read.get(Role.MAGNITUDE))
        weight = read[Role.BASE].T if self.of_tokens else read[Role.BASE]
        merged = merged_weight(weight, added)
        return np.ascontiguousarray(merged.T) if self.of_tokens else merged

    def _read(self, files: OpenFiles | None) -> dict[Role, FloatArray]:
        with OpenFiles() if files is None else nullcontext(files) as opened:
            return {role: array.read(opened) for role, array in self.arrays.items()}
