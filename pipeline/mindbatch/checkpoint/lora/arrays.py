"""Arrays in float32 that stored tensors have segments of: those of an adapter, and weights of the model."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.folders.digests import digest_of
from mindbatch.checkpoint.folders.tensor_set import TensorSet
from mindbatch.checkpoint.formats.floats import FLOAT_DTYPES, FloatArray, read_region, widened
from mindbatch.checkpoint.formats.open_file import OpenFiles
from mindbatch.checkpoint.formats.stored import StoredFile
from mindbatch.checkpoint.placement.rank_files import RankFiles
from mindbatch.checkpoint.placement.regions import (
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

    digest: the stored tensor's SHA-256 (as in digests.json) when an adapter was opened, by which it is known
    again; None for weights of the model.
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
        """The whole stored tensor, from the very bytes that the digest is of."""
        info = file.info(self.name)
        data = np.empty(info.nbytes, np.uint8).data
        file.read_into(self.name, 0, data)
        is_same = digest_of(info.dtype, info.shape, [data]) == self.digest
        if not is_same or info.dtype not in FLOAT_DTYPES:
            raise CheckpointError(f"{self.path}: tensor {shown(self.name)} has changed meanwhile")
        return widened(data, info.dtype, self.view)


class StoredArray(NamedTuple):
    """Shards that together are a matrix or vector. name: of its tensor."""

    name: str
    shape: Shape
    shards: tuple[ArrayShard, ...]

    @property
    def paths(self) -> set[str]:
        return {shard.path for shard in self.shards}

    def read(self, files: OpenFiles) -> FloatArray:
        """All of it. CheckpointError when a shard has changed since the adapter was opened."""
        return self._read(files, full_region(self.shape))

    def rows(self, start: int, stop: int, files: OpenFiles) -> FloatArray:
        """The rows start..stop; errors as of `read`."""
        return self._read(files, ((start, stop), *full_region(self.shape[1:])))

    def _read(self, files: OpenFiles, region: Region) -> FloatArray:
        values = np.empty([stop - start for start, stop in region], np.float32)
        for shard in self.shards:
            common = intersection(shard.segment.whole, region)
            if common is not None:
                place = tuple(
                    (low - start, high - start)
                    for (low, high), (start, _) in zip(common, region, strict=True)
                )
                values[slices_of(place)] = shard.read(files[shard.path], common)
        return values


def base_weight(name: str, inputs_first: bool, files: RankFiles, sets: Sequence[TensorSet]) -> StoredArray:
    """Locates a weight of the model, as [outputs, inputs], in the rank files: DoRA needs norms of whole rows.

    inputs_first: its full tensor is [inputs, outputs]. sets: the opened tensors of each rank.
    """
    shards: dict[Region, ArrayShard] = {}  # several ranks may hold the same region
    for tensor, (rank, stored, segment) in files.locations():
        if tensor == name:
            whole = oriented(segment.whole, inputs_first)
            turned = segment._replace(whole=whole, transposed=inputs_first != segment.transposed)
            path, view = str(sets[rank].file(stored).path), files.ranks[rank][stored].shard.view
            shards.setdefault(whole, ArrayShard(path, stored, view, turned))
    shape = files.shapes[name]
    return StoredArray(name, shape[::-1] if inputs_first else shape, tuple(shards.values()))
