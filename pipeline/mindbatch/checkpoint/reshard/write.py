"""One job of a reshard: chunks are read, put together, written at their places and digested."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.folders.digests import started_digest
from mindbatch.checkpoint.formats.floats import Array, converted
from mindbatch.checkpoint.placement.plan import Copy
from mindbatch.checkpoint.reshard.job import (
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


@dataclass(frozen=True, slots=True)
class Written:
    """A tensor that is in its file, which has not been synced."""

    file: str
    tensor: str
    digest: str
    nbytes: int


def write_job(job: Job, sources: Sources, write: Callable[[Writing, int, memoryview], None]) -> list[Written]:
    """Does the job. Replicas are made and digested once, and written to each of their files.

    write: takes a tensor's bytes from a position on; they change afterwards.

    Raises:
        CheckpointError: a source is damaged, or a value does not fit the target's dtype.
        StorageError: a target cannot be written.
    """
    checks = {
        place: ReadCheck(reading) for place, reading in job.readings.items() if reading.digest is not None
    }
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
    """The writings, those together that are made of the same in the same way."""
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
    if _covered(copies) < writing.row_bytes // target.itemsize:
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
