"""Reads the sources of a reshard in rows, checked against their digests and merged on the way."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import CancelledError
from threading import Event
from typing import TYPE_CHECKING

import numpy as np

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.folders.digests import damage, started_digest
from mindbatch.checkpoint.formats.floats import Array, array_type, widen
from mindbatch.checkpoint.formats.open_file import OpenFiles
from mindbatch.checkpoint.formats.stored import SLICE_BYTES, StoredFile
from mindbatch.checkpoint.placement.plan import Copy
from mindbatch.checkpoint.placement.regions import Region, region_shape
from mindbatch.checkpoint.reshard.job import CHUNK_BYTES, Job, Reading, SourceTensor
from mindbatch.io.closing import Closing
from mindbatch.io.errors import CheckpointError

if TYPE_CHECKING:  # adapters are seldom merged
    from mindbatch.checkpoint.lora.merge import Merger


class Sources(Closing):
    """The files of the sources, opened when they are needed, and memory that chunks are read into.

    files: which several threads may share. stop: once it is set, nothing more is read: CancelledError.
    """

    def __init__(self, files: OpenFiles | None = None, stop: Event | None = None) -> None:
        self._stop = stop
        self._files = OpenFiles() if files is None else files
        self._buffers: dict[object, memoryview] = {}
        self._merger: Merger | None = None

    def file(self, reading: Reading) -> StoredFile:
        """The file that holds the tensor. CheckpointError when it is another one than was planned with."""
        file = self._files[reading.path]
        info = file.info(reading.name)
        if (info.dtype, info.shape) != (reading.dtype, reading.shape):
            raise CheckpointError(f"{file.path}: tensor {shown(reading.name)} has changed meanwhile")
        return file

    def rows(
        self, reading: Reading, start: int, stop: int, place: object, check: ReadCheck | None = None
    ) -> memoryview:
        """The bytes of some rows, in the reading's values_dtype, valid until the next call with this `place`.

        check: is given the bytes as they are stored, before anything is added.
        """
        self.refuse_when_stopped()
        count = (stop - start) * reading.row_bytes
        stored = self.buffer(place, count)
        self.file(reading).read_into(reading.name, start * reading.row_bytes, stored)
        if check is not None:
            check.take(start * reading.row_bytes, stored)
        return self._merged(reading, start, stop, stored, place) if reading.edits else stored

    def refuse_when_stopped(self) -> None:
        if self._stop is not None and self._stop.is_set():
            raise CancelledError

    def _merged(
        self, reading: Reading, start: int, stop: int, stored: memoryview, place: object
    ) -> memoryview:
        data = stored
        if reading.dtype != reading.values_dtype:
            data = self.buffer((place, "merged"), (stop - start) * reading.values_row_bytes)
        values = as_array(data, reading.values_dtype, stop - start, reading.view)
        if data is not stored:
            widen(as_array(stored, reading.dtype, stop - start, reading.view), reading.dtype, values)
        if self._merger is None:
            from mindbatch.checkpoint.lora.merge import Merger

            self._merger = Merger(self._files)
        self._merger.apply(reading.name, reading.edits, start, values)
        return data

    def buffer(self, place: object, count: int) -> memoryview:
        """`count` bytes to be written over, the same ones whenever `place` is the same."""
        if place not in self._buffers or len(self._buffers[place]) < count:
            self._buffers[place] = memoryview(bytearray(count))
        return self._buffers[place][:count]

    def forget(self) -> None:
        """Gives the memory of the buffers back: the next job needs others."""
        self._buffers.clear()
        if self._merger is not None:
            self._merger.forget()

    def close(self) -> None:
        self.forget()
        self._files.close()


def as_array(data: memoryview, dtype: str, rows: int, shape: tuple[int, ...]) -> Array:
    """Rows of a tensor of `shape` as an array: of bits, for a dtype that NumPy has not."""
    array: Array = np.frombuffer(data, array_type(dtype))
    return array.reshape(rows, *shape[1:])


def all_rows(region: Region) -> tuple[slice, ...]:
    """The index of a region in an array that has its rows and no others."""
    return (slice(None), *(slice(start, stop) for start, stop in region[1:]))


class ReadCheck:
    """The digest of a reading, made while its bytes come by in order; what is missing is read at the end."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._digest = started_digest(reading.dtype, reading.shape)
        self._position = 0
        self._in_order = True

    def take(self, start: int, data: memoryview) -> None:
        """The tensor's bytes from `start` on; those that were there before are left out."""
        if start > self._position:
            self._in_order = False
        if self._in_order and start + len(data) > self._position:
            self._digest.update(data[self._position - start :])
            self._position = start + len(data)

    def finish(self, sources: Sources) -> None:
        """CheckpointError, naming tensor and file, when the digest is not the recorded one."""
        file, name = sources.file(self._reading), self._reading.name
        if not self._in_order:
            self._digest = started_digest(self._reading.dtype, self._reading.shape)
            self._position = 0
        total = self._reading.rows * self._reading.row_bytes
        while self._position < total:
            data = sources.buffer("check", min(SLICE_BYTES, total - self._position))
            file.read_into(name, self._position, data)
            self._digest.update(data)
            self._position += len(data)
        if self._reading.digest is not None and self._digest.hexdigest() != self._reading.digest.lower():
            raise CheckpointError(damage(file, name))


class TransposedRegions:
    """Source regions that a job's transposed copies need.

    A row of the target is a column of the source there, so that chunks of rows would read all of the source
    again and again. Kept are no more than the regions that are copied. checks: of readings.
    """

    def __init__(self, job: Job, sources: Sources, checks: Mapping[SourceTensor, ReadCheck]) -> None:
        self._job = job
        self._sources = sources
        self._checks = checks
        self._kept: dict[tuple[SourceTensor, Region], Array] = {}

    def rows(self, copy: Copy, start: int, stop: int) -> Array:
        """Reads a transposed copy's rows start..stop of its target, [rows, columns]."""
        if (copy.source_tensor, copy.source) not in self._kept:
            self._read(copy.source_tensor)
        first = copy.target_rows[0]
        return self._kept[copy.source_tensor, copy.source][start - first : stop - first]

    def _read(self, tensor: SourceTensor) -> None:
        reading = self._job.readings[tensor]
        copies = [copy for writing in self._job.writings for copy in writing.copies]
        regions = {copy.source for copy in copies if copy.transposed and copy.source_tensor == tensor}
        for region in regions:
            height, width = region_shape(region)
            self._kept[tensor, region] = np.empty((width, height), array_type(reading.values_dtype))
        last = max(region[0][1] for region in regions)
        step = max(1, CHUNK_BYTES // max(1, reading.row_bytes))
        for start in range(min(region[0][0] for region in regions), last, step):
            stop = min(start + step, last)
            data = self._sources.rows(reading, start, stop, "transposed_regions", self._checks.get(tensor))
            chunk = as_array(data, reading.values_dtype, stop - start, reading.view)
            for region in regions:
                _keep(chunk, start, stop, region, self._kept[tensor, region])


def _keep(chunk: Array, start: int, stop: int, region: Region, kept: Array) -> None:
    """Puts what the chunk, the rows start..stop, has of a region at its place."""
    (top, bottom), (left, right) = region
    low, high = max(start, top), min(stop, bottom)
    if low < high:
        kept[:, low - top : high - top] = chunk[low - start : high - start, left:right].T
