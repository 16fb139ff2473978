"""A weight of the model as the files of its ranks hold it: DoRA needs norms of whole rows."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.folders.digests import digest_of
from mindbatch.checkpoint.folders.tensor_set import TensorSet
from mindbatch.checkpoint.formats.floats import FLOAT_DTYPES, FloatArray, widened
from mindbatch.checkpoint.formats.open_file import OpenFiles
from mindbatch.checkpoint.formats.stored import DTYPES, StoredFile
from mindbatch.checkpoint.placement.rank_files import RankFiles
from mindbatch.checkpoint.placement.regions import (
    Region,
    Shape,
    intersection,
    oriented,
    region_shape,
    slices_of,
)
from mindbatch.io.errors import CheckpointError


class ArrayShard(NamedTuple):
    """A region of a stored tensor that is a region of an array.

    digest: the stored tensor's SHA-256 (as in digests.json) when the adapter was opened.
    """

    path: str
    name: str
    digest: str
    source: Region
    target: Region


class StoredArray(NamedTuple):
    """A matrix or vector of an adapter; name: of its tensor."""

    name: str
    shape: Shape
    shards: tuple[ArrayShard, ...]

    @property
    def paths(self) -> set[str]:
        return {shard.path for shard in self.shards}


def read_array(array: StoredArray, files: OpenFiles) -> FloatArray:
    """The whole array in float32, put together from its shards.

    CheckpointError when one has changed since the adapter was opened.
    """
    if len(array.shards) == 1:  # it is whole: nothing is copied
        [shard] = array.shards
        return _stored(shard, files[shard.path])[slices_of(shard.source)]
    values = np.empty(array.shape, np.float32)
    for shard in array.shards:
        values[slices_of(shard.target)] = _stored(shard, files[shard.path])[slices_of(shard.source)]
    return values


def _stored(shard: ArrayShard, file: StoredFile) -> FloatArray:
    info = file.info(shard.name)
    data = np.empty(info.nbytes, np.uint8).data
    file.read_into(shard.name, 0, data)
    is_same = digest_of(info.dtype, info.shape, [data]) == shard.digest
    if not is_same or info.dtype not in FLOAT_DTYPES:
        raise CheckpointError(f"{shard.path}: tensor {shown(shard.name)} has changed meanwhile")
    return widened(data, info.dtype, info.shape)


class BaseShard(NamedTuple):
    """A region of a stored tensor, counted in its view, that is the region `whole` of [outputs, inputs].

    inputs_first: its rows are inputs.
    """

    path: str
    name: str
    view: Shape
    local: Region
    whole: Region
    inputs_first: bool


class BaseWeight(NamedTuple):
    """Shards that together are a weight; shape: [outputs, inputs]."""

    shape: Shape
    shards: tuple[BaseShard, ...]

    def rows(self, start: int, stop: int, files: OpenFiles) -> FloatArray:
        """The rows of the outputs start..stop, float32 [rows, inputs]."""
        wanted = ((start, stop), (0, self.shape[1]))
        weights = np.empty((stop - start, self.shape[1]), np.float32)
        for shard in self.shards:
            common = intersection(shard.whole, wanted)
            if common is None:
                continue
            (top, bottom), (left, right) = common
            read = _read(files[shard.path], shard, _local(shard, common))
            weights[top - start : bottom - start, left:right] = read.T if shard.inputs_first else read
        return weights


def base_weight(name: str, inputs_first: bool, files: RankFiles, sets: Sequence[TensorSet]) -> BaseWeight:
    """Locates a weight of the model in the rank files.

    inputs_first: its full tensor is [inputs, outputs]. sets: the opened tensors of each rank.
    """
    shards: dict[Region, BaseShard] = {}  # several ranks may hold the same region
    for tensor, (rank, stored, segment) in files.locations():
        if tensor != name:
            continue
        view, whole = files.ranks[rank][stored].shard.view, oriented(segment.whole, inputs_first)
        path = str(sets[rank].file(stored).path)
        turned = inputs_first != segment.transposed
        shards.setdefault(whole, BaseShard(path, stored, view, segment.local, whole, turned))
    shape = files.shapes[name]
    return BaseWeight(shape[::-1] if inputs_first else shape, tuple(shards.values()))


def _local(shard: BaseShard, whole: Region) -> Region:
    """Maps a part of the shard's region to the stored tensor."""
    inside = oriented(whole, shard.inputs_first)
    origin = oriented(shard.whole, shard.inputs_first)
    return tuple(
        (low - first + place, high - first + place)
        for (low, high), (first, _), (place, _) in zip(inside, origin, shard.local, strict=True)
    )


def _read(file: StoredFile, shard: BaseShard, region: Region) -> FloatArray:
    """A region of a stored matrix in float32."""
    dtype, (height, width) = file.info(shard.name).dtype, region_shape(region)
    (top, _), (left, _) = region
    size, columns = DTYPES[dtype], shard.view[1]
    data = memoryview(bytearray(height * width * size))
    step = height if width == columns else 1
    for row in range(0, height, step):
        part = data[row * width * size : (row + step) * width * size]
        file.read_into(shard.name, ((top + row) * columns + left) * size, part)
    return widened(data, dtype, (height, width))
