"""Reading back what a reshard has written: each element is compared with its source, padding with zero."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.formats.floats import Array, converted
from mindbatch.checkpoint.placement.plan import Copy
from mindbatch.checkpoint.reshard.chunks import CHUNK_BYTES
from mindbatch.checkpoint.reshard.job import Job, Reading, Writing
from mindbatch.checkpoint.reshard.read import Sources, TransposedRegions, all_rows, as_array
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
