"""In which portions a job is done: rows of several targets at once, so that each source row is read once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mindbatch.checkpoint.placement.plan import Copy
from mindbatch.checkpoint.reshard.job import Job, SourceTensor, Writing

CHUNK_BYTES = 1 << 22
"""About how much of sources and targets is in memory at once; more where a single row is larger."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Rows of a reading: those of the targets, moved by `offset`."""

    reading: SourceTensor
    offset: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """The rows start..stop of some writings. fetches: what is read for them, each in full rows.

    Transposed copies have no fetch: a row of theirs is a column of the source.
    """

    start: int
    stop: int
    writings: tuple[Writing, ...]
    fetches: tuple[Fetch, ...]

    def copies(self, writing: Writing) -> list[tuple[Fetch | None, Copy]]:
        """The copies that fill the chunk's rows of a writing, each with where its rows are."""
        return [(fetch_of(copy), copy) for copy in writing.copies if _is_over(copy, self.start, self.stop)]


def fetch_of(copy: Copy) -> Fetch | None:
    """Finds the source tensor and row offset of a copy; None for a transposed one."""
    return None if copy.transposed else Fetch(copy.source_tensor, copy.source_rows[0] - copy.target_rows[0])


def chunks_of(job: Job, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Yields the rows of all writings once and in order; those of the sources in order where that can be."""
    for group in _groups(job.writings):
        # Cut where a copy begins or ends, so that a chunk's rows all have the same sources.
        bounds = {0, group[0].rows} | {
            bound for writing in group for copy in writing.copies for bound in copy.target_rows
        }
        ordered = sorted(bounds)
        for start, stop in zip(ordered, ordered[1:], strict=False):
            yield from _portions(job, tuple(group), start, stop, chunk_bytes)


def _groups(writings: Sequence[Writing]) -> list[list[Writing]]:
    """Writings of the same rows, made from the same rows of their sources, go together."""
    by_rows: dict[object, list[Writing]] = {}
    for writing in writings:
        rows = frozenset(
            (copy.transposed, copy.source[1] if copy.transposed else copy.source_rows, copy.target_rows)
            for copy in writing.copies
        )
        by_rows.setdefault((writing.rows, rows), []).append(writing)
    return sorted(by_rows.values(), key=lambda group: min(map(_first_place, group)))


def _first_place(writing: Writing) -> tuple[SourceTensor, int]:
    return min(((copy.source_tensor, copy.source_rows[0]) for copy in writing.copies), default=((0, ""), 0))


def _portions(
    job: Job, group: tuple[Writing, ...], start: int, stop: int, chunk_bytes: int
) -> Iterator[Chunk]:
    copies = [copy for writing in group for copy in writing.copies if _is_over(copy, start, stop)]
    fetches = tuple(dict.fromkeys(fetch for fetch in map(fetch_of, copies) if fetch is not None))
    width = sum(job.readings[fetch.reading].values_row_bytes for fetch in fetches)
    width += sum(writing.row_bytes for writing in group)
    step = max(1, chunk_bytes // max(1, width))
    for first in range(start, stop, step):
        yield Chunk(first, min(first + step, stop), group, fetches)


def _is_over(copy: Copy, start: int, stop: int) -> bool:
    low, high = copy.target_rows
    return low < stop and start < high
