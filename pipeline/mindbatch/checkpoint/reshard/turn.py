"""Boxes of sources that go into their targets transposed: read once a job, in order, and kept turned."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mindbatch.checkpoint.formats.floats import Array, array_type
from mindbatch.checkpoint.placement.plan import Copy
from mindbatch.checkpoint.placement.regions import Region
from mindbatch.checkpoint.reshard.band import BAND_BYTES
from mindbatch.checkpoint.reshard.job import Job, SourceTensor
from mindbatch.checkpoint.reshard.read import ReadCheck, Sources, as_array


class Turned:
    """What the transposed copies of a job need of its sources.

    A row of the target is a column of the source there, so that bands of rows would read all of the source
    again and again. Kept is no more than the boxes that are moved. checks: of readings.
    """

    def __init__(self, job: Job, sources: Sources, checks: Mapping[SourceTensor, ReadCheck]) -> None:
        self._job = job
        self._sources = sources
        self._checks = checks
        self._kept: dict[tuple[SourceTensor, Region], Array] = {}

    def rows(self, copy: Copy, start: int, stop: int) -> Array:
        """What a transposed copy has for the rows start..stop of its target, [rows, columns of its box]."""
        if (copy.source_tensor, copy.source) not in self._kept:
            self._turn(copy.source_tensor)
        first = copy.target_rows[0]
        return self._kept[copy.source_tensor, copy.source][start - first : stop - first]

    def _turn(self, number: SourceTensor) -> None:
        """Reads all boxes that the job copies from one reading and transposes."""
        reading = self._job.readings[number]
        copies = [copy for writing in self._job.writings for copy in writing.copies]
        boxes = {copy.source for copy in copies if copy.transposed and copy.source_tensor == number}
        for box in boxes:
            (top, bottom), (left, right) = box
            self._kept[number, box] = np.empty((right - left, bottom - top), array_type(reading.values_dtype))
        last = max(box[0][1] for box in boxes)
        step = max(1, BAND_BYTES // max(1, reading.row_bytes))
        for start in range(min(box[0][0] for box in boxes), last, step):
            stop = min(start + step, last)
            data = self._sources.rows(reading, start, stop, "turned", self._checks.get(number))
            band = as_array(data, reading.values_dtype, stop - start, reading.counted)
            for box in boxes:
                _keep(band, start, stop, box, self._kept[number, box])


def _keep(band: Array, start: int, stop: int, box: Region, kept: Array) -> None:
    """Puts what the band, the rows start..stop, has of a box at its place."""
    (top, bottom), (left, right) = box
    low, high = max(start, top), min(stop, bottom)
    if low < high:
        kept[:, low - top : high - top] = band[low - start : high - start, left:right].T
