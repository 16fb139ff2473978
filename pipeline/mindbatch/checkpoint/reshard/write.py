"""One job of a reshard: chunks are read, put together, written at their places and digested."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.folders.digests import started_digest
from mindbatch.checkpoint.formats.floats import Array, converted
from mindbatch.checkpoint.placement.plan import Copy
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
from mindbatch.checkpoint.reshard.read import ReadCheck, Sources, TransposedRegions, all_rows, as_array
from mindbatch.io.errors import CheckpointError


def check_job(job: Job, folder: Path, sources: Sources) -> None:
    """Compares the job's tensors below `folder`, as their files say where they are, with the sources.

    CheckpointError names the first tensor and file that differ.
    """
    transposed_regions = TransposedRegions(job, sources, {})
    for writing in job.writings:
        written = Reading(
            str(folder / writing.file), writing.name, writing.dtype, writing.shape, view=writing.view
        )
        widest = max([writing.row_bytes, *(reading.values_row_bytes for reading in job.readings.values())])
        step = max(1, CHUNK_BYTES // max(1, widest))
        for start in range(0, writing.rows, step):
            _check_rows(
                job, writing, written, start, min(start + step, writing.rows), sources, transposed_regions
            )
    sources.forget()


def _check_rows(
    job: Job,
    writing: Writing,
    written: Reading,
    start: int,
    stop: int,
    sources: Sources,
    transposed_regions: TransposedRegions,
) -> None:
    """Takes away all that comes from a source; nothing but zeros may be left."""
    data = sources.rows(written, start, stop, "written")
    written_values = as_array(data, writing.dtype, stop - start, writing.counted)
    for copy in writing.copies:
        low, high = max(start, copy.target_rows[0]), min(stop, copy.target_rows[1])
        if low >= high:
            continue
        place = (slice(low - start, high - start), *all_rows(copy.target)[1:])
        if copy.transposed:
            expected = transposed_regions.rows(copy, low, high)
        else:
            expected = _source_rows(job.readings[copy.source_tensor], copy, low, high, sources)
        values, _ = converted(expected, job.readings[copy.source_tensor].values_dtype, writing.dtype)
        if written_values[place].tobytes() != values.tobytes():
            raise CheckpointError(f"{written.path}: tensor {shown(writing.name)} is not what its source is")
        # What no copy has cleared in the end is padding.
        written_values[place] = 0
    if np.frombuffer(data, np.uint8).any():
        raise CheckpointError(f"{written.path}: the padding of tensor {shown(writing.name)} is not zero")


def _source_rows(reading: Reading, copy: Copy, low: int, high: int, sources: Sources) -> Array:
    """Reads the source's rows for the target's rows low..high."""
    offset = copy.source_rows[0] - copy.target_rows[0]
    data = sources.rows(reading, low + offset, high + offset, "source")
    whole = as_array(data, reading.values_dtype, high - low, reading.counted)
    part: Array = whole[all_rows(copy.source)]
    return part


@dataclass(frozen=True, slots=True)
class Written:
    """A tensor that is in its file, which has not been synced."""

    file: str
    tensor: str
    digest: str
    nbytes: int


class Takes(Protocol):
    def write(self, writing: Writing, start: int, data: memoryview) -> None:
        """Takes the tensor's bytes from `start` on; `data` changes afterwards."""
        ...


def write_job(job: Job, sources: Sources, targets: Takes) -> list[Written]:
    """Does the job. Replicas are made and digested once, and written to each of their files.

    Raises:
        CheckpointError: a source is damaged, or a value does not fit the target's dtype.
        StorageError: a target cannot be written.
    """
    checks = {
        place: ReadCheck(reading) for place, reading in job.readings.items() if reading.digest is not None
    }
    replicas: dict[object, list[Writing]] = {}
    for writing in job.writings:
        replicas.setdefault((writing.copies, writing.dtype, writing.shape, writing.view), []).append(writing)
    alike = {(same[0].file, same[0].name): same for same in replicas.values()}
    digests = {place: started_digest(same[0].dtype, same[0].shape) for place, same in alike.items()}
    transposed = TransposedRegions(job, sources, checks)
    for chunk in chunks_of(job):
        fetched = _fetched(job, chunk, sources, checks)
        for writing in chunk.writings:
            place = writing.file, writing.name
            if place not in alike:
                continue
            content = _content(job, writing, chunk, fetched, sources, transposed)
            digests[place].update(content)
            for same in alike[place]:
                targets.write(same, chunk.start * same.row_bytes, content)
    # The digests of sources are known only now; nothing is noted in the journal before this returns.
    for check in checks.values():
        check.finish(sources)
    sources.forget()
    return [
        Written(same.file, same.name, digests[place].hexdigest(), same.nbytes)
        for place, all_same in alike.items()
        for same in all_same
    ]


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
    target = as_array(data, writing.dtype, rows, writing.counted)
    # Padding is zero. Rows that copies cover wholly need no clearing.
    if _covered(copies) < writing.row_bytes // target.itemsize:
        target.fill(0)
    for fetch, copy in copies:
        reading = job.readings[copy.source_tensor]
        if fetch is None:
            part = transposed.rows(copy, chunk.start, chunk.stop)
        else:
            source = as_array(fetched[fetch], reading.values_dtype, rows, reading.counted)
            part = source[all_rows(copy.source)]
        target[all_rows(copy.target)] = _fitting(job, writing, part, reading.values_dtype)
    return data


def _is_as_read(job: Job, writing: Writing, copy: Copy) -> bool:
    """True if whole rows become whole rows and no element changes."""
    reading = job.readings[copy.source_tensor]
    columns = tuple((0, size) for size in writing.counted[1:])
    alike = (reading.values_dtype, reading.counted[1:]) == (writing.dtype, writing.counted[1:])
    return alike and copy.source[1:] == copy.target[1:] == columns


def _covered(copies: list[tuple[Fetch | None, Copy]]) -> int:
    """Elements of a row that are moved there."""
    return sum(int(np.prod([stop - start for start, stop in copy.target[1:]])) for _, copy in copies)


def _fitting(job: Job, writing: Writing, values: Array, dtype: str) -> Array:
    fitting, num_overflows = converted(values, dtype, writing.dtype)
    if num_overflows and not job.allow_overflow:
        raise CheckpointError(
            f"tensor {shown(writing.name)}: {num_overflows} or more values are too large for "
            f"{writing.dtype}{job.overflow_hint}"
        )
    return fitting
