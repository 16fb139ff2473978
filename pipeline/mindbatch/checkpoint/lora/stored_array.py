"""Arrays of adapters as they are stored, whole in one file or cut over ranks, each shard with its digest."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.folders.digests import digest_of, mark_of
from mindbatch.checkpoint.formats.floats import FLOAT_DTYPES, FloatArray, widened
from mindbatch.checkpoint.formats.open_file import OpenFiles
from mindbatch.checkpoint.formats.stored import StoredFile
from mindbatch.checkpoint.placement.regions import Region, Shape
from mindbatch.io.errors import CheckpointError


class ArrayShard(NamedTuple):
    """A region of a stored tensor that is a region of an array.

    digest: the stored tensor's SHA-256 (as in digests.json) when the adapter was opened. mark: of the same
    bytes, see `Marked`; where there is one it is compared when they are read again.
    """

    path: str
    name: str
    digest: str
    source: Region
    target: Region
    mark: bytes | None = None


class StoredArray(NamedTuple):
    """A matrix or vector of an adapter; name: of its tensor."""

    name: str
    shape: Shape
    shards: tuple[ArrayShard, ...]

    @property
    def paths(self) -> set[str]:
        """The files of its shards."""
        return {shard.path for shard in self.shards}


def read_array(array: StoredArray, files: OpenFiles) -> FloatArray:
    """The whole array in float32, put together from its shards.

    CheckpointError when one has changed since the adapter was opened.
    """
    if len(array.shards) == 1:  # it is whole: nothing is copied
        [shard] = array.shards
        return _stored(shard, files[shard.path])[_index(shard.source)]
    values = np.empty(array.shape, np.float32)
    for shard in array.shards:
        values[_index(shard.target)] = _stored(shard, files[shard.path])[_index(shard.source)]
    return values


def _index(region: Region) -> tuple[slice, ...]:
    return tuple(slice(*bounds) for bounds in region)


def _stored(shard: ArrayShard, file: StoredFile) -> FloatArray:
    info = file.info(shard.name)
    data = np.empty(info.nbytes, np.uint8).data
    file.read_into(shard.name, 0, data)
    if shard.mark is None:
        is_same = digest_of(info.dtype, info.shape, [data]) == shard.digest
    else:
        is_same = mark_of(info.dtype, info.shape, data) == shard.mark
    if not is_same or info.dtype not in FLOAT_DTYPES:
        raise CheckpointError(f"{shard.path}: tensor {shown(shard.name)} has changed meanwhile")
    return widened(data, info.dtype, info.shape)
