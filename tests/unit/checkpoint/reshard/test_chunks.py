"""In which order a job goes through rows: each of the targets once, the sources once where that can be."""

from collections import Counter

import pytest

from mindbatch.checkpoint.formats.stored import ByteExtent
from mindbatch.checkpoint.placement.plan import Copy
from mindbatch.checkpoint.reshard.job import Chunk, Job, Reading, Writing, chunks_of

ROWS, COLUMNS, WAYS = 24, 16, 4
FULL = Reading("full", "x", "F32", (ROWS, COLUMNS), (ROWS, COLUMNS))


def writing(rank: int, shape: tuple[int, int], *copies: Copy) -> Writing:
    return Writing(
        f"rank_{rank}", "x", "F32", shape, shape, (ByteExtent(0, 4 * shape[0] * shape[1]),), copies
    )


def by_rows() -> Job:
    share = ROWS // WAYS
    cuts = [((rank * share, rank * share + share), (0, COLUMNS)) for rank in range(WAYS)]
    copies = [Copy(0, "x", cut, ((0, share), (0, COLUMNS))) for cut in cuts]
    return Job("x", {(0, "x"): FULL}, tuple(writing(r, (share, COLUMNS), m) for r, m in enumerate(copies)))


def by_columns() -> Job:
    share = COLUMNS // WAYS
    cuts = [((0, ROWS), (rank * share, rank * share + share)) for rank in range(WAYS)]
    copies = [Copy(0, "x", cut, ((0, ROWS), (0, share))) for cut in cuts]
    return Job("x", {(0, "x"): FULL}, tuple(writing(r, (ROWS, share), m) for r, m in enumerate(copies)))


def replicated() -> Job:
    move = Copy(0, "x", ((0, ROWS), (0, COLUMNS)), ((0, ROWS), (0, COLUMNS)))
    return Job("x", {(0, "x"): FULL}, tuple(writing(rank, (ROWS, COLUMNS), move) for rank in range(WAYS)))


def rows_of(chunk: Chunk) -> range:
    return range(chunk.start, chunk.stop)


def rows_read(chunks: list[Chunk]) -> list[int]:
    return [row + f.offset for chunk in chunks for f in chunk.fetches for row in rows_of(chunk)]


@pytest.mark.parametrize("job", [by_rows(), by_columns(), replicated()], ids=["rows", "columns", "replicas"])
@pytest.mark.parametrize("chunk_bytes", [1, 1000, 10**6])
def test_each_row_is_read_once_and_in_order(job: Job, chunk_bytes: int) -> None:
    chunks = list(chunks_of(job, chunk_bytes))
    assert rows_read(chunks) == list(range(ROWS))
    made = Counter(
        (writing.file, row) for chunk in chunks for writing in chunk.writings for row in rows_of(chunk)
    )
    assert set(made.values()) == {1}
    assert len(made) == sum(writing.rows for writing in job.writings)


def test_a_band_is_as_large_as_it_may_be() -> None:
    chunks = list(chunks_of(by_columns(), 4 * COLUMNS * 2 * 5))  # a row is read, and written once in all
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [(0, 5), (5, 10), (10, 15), (15, 20), (20, 24)]


def test_padding_and_seams_divide_bands() -> None:
    """Two sources one below the other, and a row of zeros at the end."""
    sources = {
        (0, "x"): Reading("a", "x", "F32", (3, 2), (3, 2)),
        (1, "x"): Reading("b", "x", "F32", (4, 2), (4, 2)),
    }
    copies = (
        Copy(0, "x", ((0, 3), (0, 2)), ((0, 3), (0, 2))),
        Copy(1, "x", ((0, 4), (0, 2)), ((3, 7), (0, 2))),
    )
    job = Job("x", sources, (writing(0, (8, 2), *copies),))
    chunks = list(chunks_of(job))
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [(0, 3), (3, 7), (7, 8)]
    assert [[(f.reading, f.offset) for f in chunk.fetches] for chunk in chunks] == [
        [((0, "x"), 0)],
        [((1, "x"), -3)],
        [],
    ]
    assert chunks[2].copies(job.writings[0]) == []


def test_nothing_is_done_for_no_rows() -> None:
    assert list(chunks_of(Job("x", {}, (writing(0, (0, 4)),)))) == []
