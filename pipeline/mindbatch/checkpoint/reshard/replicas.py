"""Compares elements that several ranks of a source hold, of which a reshard reads one."""

import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from mindbatch.checkpoint.error_lines import raise_if_any, shown
from mindbatch.checkpoint.folders.tensor_set import TensorSet
from mindbatch.checkpoint.formats.stored import DTYPES
from mindbatch.checkpoint.placement.plan import first_locations
from mindbatch.checkpoint.placement.regions import (
    Location,
    Pair,
    RankFiles,
    Region,
    intersection,
    rows_of,
    volume,
)
from mindbatch.checkpoint.reshard.job import CHUNK_BYTES, Reading, reading_of
from mindbatch.checkpoint.reshard.progress import Progress, silent
from mindbatch.checkpoint.reshard.write import Sources, all_rows, as_array


@dataclass(frozen=True, slots=True)
class ReplicaPair:
    """Regions of two tensors, of one dtype, that must hold the same; counted in the views of the two."""

    first: Reading
    other: Reading
    regions: tuple[Pair, ...]

    @property
    def nbytes(self) -> int:
        """Bytes compared, on one of the two sides."""
        return sum(volume(other) for _, other in self.regions) * DTYPES[self.other.dtype]

    def error(self) -> str:
        return (
            f"{self.other.path}: tensor {shown(self.other.name)} is not as in {self.first.path}, where it "
            "must be the same; one of the two files is damaged or of another checkpoint"
        )


def digest_errors(files: RankFiles, sources: Sequence[TensorSet]) -> list[str]:
    """Lists whole tensors whose recorded digests differ between ranks that must hold the same."""
    errors: list[str] = []
    known: dict[object, Reading] = {}
    for rank, source in enumerate(sources):
        for name, stored in files.ranks[rank].items():
            reading = reading_of(source, name, stored)
            if reading.digest is None or not stored.shard.segments:
                continue
            first = known.setdefault((reading.dtype, reading.shape, stored), reading)
            if (first.digest or "").lower() != reading.digest.lower():
                errors.append(ReplicaPair(first, reading, ()).error())
    return errors


def replicas_of(files: RankFiles, sources: Sequence[TensorSet]) -> list[ReplicaPair]:
    pairs: dict[tuple[int, str, int, str], list[Pair]] = {}
    for first, other, regions in _shared(files):
        pairs.setdefault((first.rank, first.name, other.rank, other.name), []).append(regions)

    def reading(rank: int, name: str) -> Reading:
        return reading_of(sources[rank], name, files.ranks[rank][name])

    return [
        ReplicaPair(reading(rank, name), reading(other_rank, other_name), tuple(regions))
        for (rank, name, other_rank, other_name), regions in pairs.items()
    ]


def _shared(files: RankFiles) -> Iterator[tuple[Location, Location, Pair]]:
    first_of = first_locations(files)
    for tensor, other in files.locations():
        first = first_of[tensor][other.segment.whole]
        if first != other:
            yield first, other, (first.segment.local, other.segment.local)
    for tensor, regions in first_of.items():
        if sum(map(volume, regions)) > math.prod(files.shapes[tensor]):
            yield from _overlapping([*regions.values()])


def _overlapping(locations: Sequence[Location]) -> Iterator[tuple[Location, Location, Pair]]:
    """Yields pairs of regions that are not equal and have elements in common."""
    for number, other in enumerate(locations):
        for first in locations[:number]:
            common = intersection(first.segment.whole, other.segment.whole)
            if common is not None:
                yield first, other, (first.segment.local_at(common), other.segment.local_at(common))


def compare(pairs: Sequence[ReplicaPair], progress: Progress = silent) -> None:
    """Reads and compares all pairs in threads. CheckpointError lists the tensors and files that differ."""
    done, total = 0, sum(pair.nbytes for pair in pairs)
    by_files: dict[tuple[str, str], list[ReplicaPair]] = {}
    for pair in pairs:
        by_files.setdefault((pair.first.path, pair.other.path), []).append(pair)
    errors: list[str] = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for differences, same in zip(pool.map(_differing, by_files.values()), by_files.values(), strict=True):
            errors += differences
            done += sum(pair.nbytes for pair in same)
            progress("comparing what several ranks hold", done, total)
    raise_if_any(errors)


def _differing(pairs: Sequence[ReplicaPair]) -> list[str]:
    """Lists the pairs that differ; each thread has its own files and memory."""
    with Sources() as sources:
        return [
            pair.error()
            for pair in pairs
            if not all(_are_alike(pair, sources, *regions) for regions in pair.regions)
        ]


def _are_alike(pair: ReplicaPair, sources: Sources, first: Region, other: Region) -> bool:
    """Compares some rows after others."""
    low, high = rows_of(other)
    step = max(1, CHUNK_BYTES // max(1, pair.first.row_bytes, pair.other.row_bytes))
    for start in range(0, high - low, step):
        stop = min(start + step, high - low)
        one = _bytes_of(pair.first, first, start, stop, sources, "first")
        if one != _bytes_of(pair.other, other, start, stop, sources, "other"):
            return False
    return True


def _bytes_of(reading: Reading, region: Region, start: int, stop: int, sources: Sources, key: str) -> bytes:
    low, _ = rows_of(region)
    data = sources.rows(reading, low + start, low + stop, key)
    return as_array(data, reading.dtype, stop - start, reading.view)[all_rows(region)].tobytes()
