"""Elements that several ranks of a source hold: a reshard reads one, so the others must be the same."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.folders.tensor_set import TensorSet
from mindbatch.checkpoint.formats.stored import DTYPES
from mindbatch.checkpoint.placement.rank_files import RankFiles, StoredSegment
from mindbatch.checkpoint.placement.regions import Region, intersection, rows_of, volume
from mindbatch.checkpoint.reshard.band import BAND_BYTES
from mindbatch.checkpoint.reshard.job import Reading, reading_of
from mindbatch.checkpoint.reshard.progress import Progress, silent
from mindbatch.checkpoint.reshard.read import Sources, all_rows, as_array


class _Place(NamedTuple):
    """Where a rank has a region."""

    rank: int
    name: str
    segment: StoredSegment


@dataclass(frozen=True, slots=True)
class Twins:
    """Regions of two tensors, of one dtype, that must hold the same; counted in the views of the two."""

    first: Reading
    other: Reading
    pairs: tuple[tuple[Region, Region], ...]

    @property
    def nbytes(self) -> int:
        """Of what is compared, on one of the two sides."""
        return sum(volume(other) for _, other in self.pairs) * DTYPES[self.other.dtype]

    def fault(self) -> str:
        """The line when they differ."""
        return (
            f"{self.other.path}: tensor {shown(self.other.name)} is not as in {self.first.path}, where it "
            "must be the same; one of the two files is damaged or of another checkpoint"
        )


def digest_faults(files: RankFiles, sources: Sequence[TensorSet]) -> list[str]:
    """A line for each whole tensor whose recorded digest is not that of the rank that holds the same."""
    faults: list[str] = []
    known: dict[object, Reading] = {}
    for rank, source in enumerate(sources):
        for name, stored in files.ranks[rank].items():
            reading = reading_of(source, name, stored)
            if reading.digest is None or not stored.segments:
                continue
            first = known.setdefault((reading.dtype, reading.shape, stored.segments), reading)
            if (first.digest or "").lower() != reading.digest.lower():
                faults.append(Twins(first, reading, ()).fault())
    return faults


def twins_of(files: RankFiles, sources: Sequence[TensorSet]) -> list[Twins]:
    """Everything that must be compared so that all ranks agree on every element that several have."""
    pairs: dict[tuple[int, str, int, str], list[tuple[Region, Region]]] = {}
    for first, other, regions in _shared(files):
        pairs.setdefault((first.rank, first.name, other.rank, other.name), []).append(regions)

    def reading(rank: int, name: str) -> Reading:
        return reading_of(sources[rank], name, files.ranks[rank][name])

    return [
        Twins(reading(rank, name), reading(other_rank, other_name), tuple(regions))
        for (rank, name, other_rank, other_name), regions in pairs.items()
    ]


def _shared(files: RankFiles) -> Iterator[tuple[_Place, _Place, tuple[Region, Region]]]:
    """Two places of the same elements, and their regions there."""
    known: dict[str, dict[Region, _Place]] = {}  # of each full tensor, the first place of each region
    for rank, tensors in enumerate(files.ranks):
        for name, stored in tensors.items():
            for segment in stored.segments:
                places = known.setdefault(segment.tensor, {})
                place = _Place(rank, name, segment)
                first = places.setdefault(segment.whole, place)
                if first is not place:
                    yield first, place, (first.segment.stored, segment.stored)
    for tensor, places in known.items():
        if sum(map(volume, places)) > math.prod(files.shapes[tensor]):
            yield from _overlapping([*places.values()])


def _overlapping(places: Sequence[_Place]) -> Iterator[tuple[_Place, _Place, tuple[Region, Region]]]:
    """The same of regions that are not equal and have elements in common."""
    for number, place in enumerate(places):
        for first in places[:number]:
            common = intersection(first.segment.whole, place.segment.whole)
            if common is not None:
                yield first, place, (first.segment.stored_at(common), place.segment.stored_at(common))


def compare(all_twins: Sequence[Twins], progress: Progress = silent) -> None:
    """Reads and compares all of them, in threads. CheckpointError lists tensors and files that differ."""
    done, total = 0, sum(each.nbytes for each in all_twins)
    by_files: dict[tuple[str, str], list[Twins]] = {}
    for twins in all_twins:
        by_files.setdefault((twins.first.path, twins.other.path), []).append(twins)
    faults: list[str] = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for found, pair in zip(pool.map(_differing, by_files.values()), by_files.values(), strict=True):
            faults += found
            done += sum(each.nbytes for each in pair)
            progress("comparing what several ranks hold", done, total)
    raise_if_any(faults)


def _differing(all_twins: Sequence[Twins]) -> list[str]:
    """A line for each that differs; a thread has its own files and memory."""
    with Sources() as sources:
        return [twins.fault() for twins in all_twins if not _are_alike(twins, sources)]


def _are_alike(twins: Twins, sources: Sources) -> bool:
    """Whether the two hold the same bytes."""
    return all(_regions_are_alike(twins, sources, *pair) for pair in twins.pairs)


def _regions_are_alike(twins: Twins, sources: Sources, first: Region, other: Region) -> bool:
    """Compares some rows after others."""
    low, high = rows_of(other)
    step = max(1, BAND_BYTES // max(1, twins.first.row_bytes, twins.other.row_bytes))
    for start in range(0, high - low, step):
        stop = min(start + step, high - low)
        one = _bytes_of(twins.first, first, start, stop, sources, "first")
        if one != _bytes_of(twins.other, other, start, stop, sources, "other"):
            return False
    return True


def _bytes_of(reading: Reading, region: Region, start: int, stop: int, sources: Sources, place: str) -> bytes:
    """The bytes of rows start..stop of the region."""
    low, _ = rows_of(region)
    data = sources.rows(reading, low + start, low + stop, place)
    return as_array(data, reading.dtype, stop - start, reading.counted)[all_rows(region)].tobytes()
