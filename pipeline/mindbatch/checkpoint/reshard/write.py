"""One job of a reshard: rows are read, checked and merged, put together, written and digested."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import numpy as np

from mindbatch.checkpoint.error_lines import shown
from mindbatch.checkpoint.folders.digests import damage, started_digest
from mindbatch.checkpoint.formats.floats import Array, array_type, converted, widen
from mindbatch.checkpoint.formats.open_file import OpenFiles
from mindbatch.checkpoint.formats.stored import SLICE_BYTES, StoredFile
from mindbatch.checkpoint.placement.plan import Copy
from mindbatch.checkpoint.placement.regions import Region, region_shape, slices_of, volume
from mindbatch.checkpoint.reshard.job import (
    CHUNK_BYTES,
    Chunk,
    Fetch,
    Job,
    Reading,
    SourceTensor,
    Writing,
    chunks_of,
)
from mindbatch.io.closing import Closing
from mindbatch.io.errors import CheckpointError

if TYPE_CHECKING:  # adapters are seldom merged
    from mindbatch.checkpoint.lora.merge import Merger


class Sources(Closing):
    """The files of the sources, opened when they are needed, and memory that chunks are read into.

    files: opened files, which several threads may share.
    stop: event that ends all reading with CancelledError.
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
        self, reading: Reading, start: int, stop: int, key: object, check: ReadCheck | None = None
    ) -> memoryview:
        """The bytes of some rows, in the reading's values_dtype, valid until the next call with this key.

        check: takes the bytes as they are stored, before anything is added.
        """
        self.refuse_when_stopped()
        count = (stop - start) * reading.row_bytes
        stored = self.buffer(key, count)
        self.file(reading).read_into(reading.name, start * reading.row_bytes, stored)
        if check is not None:
            check.take(start * reading.row_bytes, stored)
        return self._merged(reading, start, stop, stored, key) if reading.edits else stored

    def refuse_when_stopped(self) -> None:
        if self._stop is not None and self._stop.is_set():
            raise CancelledError

    def _merged(self, reading: Reading, start: int, stop: int, stored: memoryview, key: object) -> memoryview:
        data = stored
        if reading.dtype != reading.values_dtype:
            data = self.buffer((key, "merged"), (stop - start) * reading.values_row_bytes)
        values = as_array(data, reading.values_dtype, stop - start, reading.view)
        if data is not stored:
            widen(as_array(stored, reading.dtype, stop - start, reading.view), reading.dtype, values)
        if self._merger is None:
            from mindbatch.checkpoint.lora.merge import Merger

            self._merger = Merger(self._files)
        self._merger.apply(reading.name, reading.edits, start, values)
        return data

    def buffer(self, key: object, count: int) -> memoryview:
        """A buffer of `count` bytes, the same one for the same key."""
        if key not in self._buffers or len(self._buffers[key]) < count:
            self._buffers[key] = memoryview(bytearray(count))
        return self._buffers[key][:count]

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
    return (slice(None), *slices_of(region[1:]))


class ReadCheck:
    """Digests a reading while its bytes are read in order; bytes that are missing are read at the end."""

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

    A row of the target is a column of the source, so that chunks of rows would read the whole source again
    and again; so the regions that are copied are kept in memory.
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
    """Copies the chunk's part of a region, of the rows start..stop, into the region's array, transposed."""
    (top, bottom), (left, right) = region
    low, high = max(start, top), min(stop, bottom)
    if low < high:
        kept[:, low - top : high - top] = chunk[low - start : high - start, left:right].T


@dataclass(frozen=True, slots=True)
class Written:
    """A tensor that is in its file, which has not been synced."""

    file: str
    tensor: str
    digest: str
    nbytes: int


def write_job(job: Job, sources: Sources, write: Callable[[Writing, int, memoryview], None]) -> list[Written]:
    """Does the job. Replicas are made and digested once, and written to each of their files.

    write: function that writes bytes of a tensor at a position, before it returns: they change afterwards.

    Raises:
        CheckpointError: a source is damaged, or a value does not fit the target's dtype.
        StorageError: a target cannot be written.
    """
    checks = {key: ReadCheck(reading) for key, reading in job.readings.items() if reading.digest is not None}
    replicas = _replicas(job)
    digests = [started_digest(alike[0].dtype, alike[0].shape) for alike in replicas]
    for number, start, content in _contents(job, replicas, sources, checks):
        digests[number].update(content)
        for writing in replicas[number]:
            write(writing, start * writing.row_bytes, content)
    # The digests of sources are known only now; nothing is noted in the journal before this returns.
    for check in checks.values():
        check.finish(sources)
    sources.forget()
    return [
        Written(writing.file, writing.name, digest.hexdigest(), writing.nbytes)
        for alike, digest in zip(replicas, digests, strict=True)
        for writing in alike
    ]


def check_job(job: Job, sources: Sources, folder: Path) -> None:
    """Makes the job's tensors again and compares them with those in the files below `folder`.

    CheckpointError names the first tensor and file that differ.
    """
    replicas = _replicas(job)
    for number, start, content in _contents(job, replicas, sources, {}):
        for writing in replicas[number]:
            path = str(folder / writing.file)
            written = Reading(path, writing.name, writing.dtype, writing.shape, writing.view)
            stop = start + len(content) // max(1, writing.row_bytes)
            if sources.rows(written, start, stop, "written").tobytes() != content.tobytes():
                raise CheckpointError(f"{path}: tensor {shown(writing.name)} is not what its source is")
    sources.forget()


def _replicas(job: Job) -> list[list[Writing]]:
    """Groups the writings of equal contents."""
    replicas: dict[object, list[Writing]] = {}
    for writing in job.writings:
        replicas.setdefault((writing.copies, writing.dtype, writing.shape, writing.view), []).append(writing)
    return [*replicas.values()]


def _contents(
    job: Job,
    replicas: Sequence[Sequence[Writing]],
    sources: Sources,
    checks: Mapping[SourceTensor, ReadCheck],
) -> Iterator[tuple[int, int, memoryview]]:
    """Yields the rows of all replicas, once: their number, the first row, and the bytes until the next."""
    numbers = {(alike[0].file, alike[0].name): number for number, alike in enumerate(replicas)}
    transposed = TransposedRegions(job, sources, checks)
    for chunk in chunks_of(job):
        fetched = _fetched(job, chunk, sources, checks)
        for writing in chunk.writings:
            number = numbers.get((writing.file, writing.name))
            if number is not None:
                yield number, chunk.start, _content(job, writing, chunk, fetched, sources, transposed)


def _fetched(
    job: Job, chunk: Chunk, sources: Sources, checks: Mapping[SourceTensor, ReadCheck]
) -> dict[Fetch, memoryview]:
    """The bytes of the rows that the chunk needs, digested on their way where there is a check."""
    fetched: dict[Fetch, memoryview] = {}
    for number, fetch in enumerate(chunk.fetches):
        start, stop = chunk.start + fetch.offset, chunk.stop + fetch.offset
        check = checks.get(fetch.reading)
        fetched[fetch] = sources.rows(job.readings[fetch.reading], start, stop, number, check)
    return fetched


def _content(
    job: Job,
    writing: Writing,
    chunk: Chunk,
    fetched: Mapping[Fetch, memoryview],
    sources: Sources,
    transposed: TransposedRegions,
) -> memoryview:
    copies, rows = chunk.copies(writing), chunk.stop - chunk.start
    if len(copies) == 1 and (only := copies[0][0]) is not None and _is_as_read(job, writing, copies[0][1]):
        return fetched[only]
    data = sources.buffer("target", rows * writing.row_bytes)
    target = as_array(data, writing.dtype, rows, writing.view)
    # Padding is zero. Rows that copies cover wholly need no clearing.
    if sum(volume(copy.target[1:]) for _, copy in copies) < writing.row_bytes // target.itemsize:
        target.fill(0)
    for fetch, copy in copies:
        reading = job.readings[copy.source_tensor]
        if fetch is None:
            part = transposed.rows(copy, chunk.start, chunk.stop)
        else:
            source = as_array(fetched[fetch], reading.values_dtype, rows, reading.view)
            part = source[all_rows(copy.source)]
        target[all_rows(copy.target)] = _fitting(job, writing, part, reading.values_dtype)
    return data


def _is_as_read(job: Job, writing: Writing, copy: Copy) -> bool:
    reading = job.readings[copy.source_tensor]
    columns = tuple((0, size) for size in writing.view[1:])
    alike = (reading.values_dtype, reading.view[1:]) == (writing.dtype, writing.view[1:])
    return alike and copy.source[1:] == copy.target[1:] == columns


def _fitting(job: Job, writing: Writing, values: Array, dtype: str) -> Array:
    fitting, num_overflows = converted(values, dtype, writing.dtype)
    if num_overflows and not job.allow_overflow:
        raise CheckpointError(
            f"tensor {shown(writing.name)}: {num_overflows} or more values are too large for "
            f"{writing.dtype}{job.overflow_hint}"
        )
    return fitting
