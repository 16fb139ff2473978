"""Jobs done in several threads: all of them, or none any more once one has failed or nobody asks."""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from mindbatch.checkpoint.formats.stored import ByteExtent
from mindbatch.checkpoint.reshard.carry_out import do_jobs
from mindbatch.checkpoint.reshard.folder import TargetFiles
from mindbatch.checkpoint.reshard.job import Job, Writing
from mindbatch.checkpoint.reshard.write import Sources, write_job
from mindbatch.io.errors import CheckpointError
from mindbatch.io.storage import Storage

COUNT = 40


def jobs(count: int = COUNT) -> list[Job]:
    """Each writes a zero, as padding, at a place of its own."""
    return [
        Job(
            f"tensor_{place}",
            {},
            (Writing("file", f"tensor_{place}", "U8", (1,), (1,), (ByteExtent(place, 1),), ()),),
        )
        for place in range(count)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(b"\1" * (COUNT + 1))
    return tmp_path


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


@pytest.mark.parametrize("workers", [1, 2, 7, COUNT + 1])
def test_all_are_done(folder: Path, workers: int) -> None:
    with TargetFiles(folder, Storage()) as targets:
        done = [*do_jobs(partial(write_job, write=targets.write), jobs(), workers)]
    assert sorted(job.name for job, _ in done) == sorted(job.name for job in jobs())
    assert (folder / "file").read_bytes() == bytes(COUNT) + b"\1"


def endless(job: Job, sources: Sources) -> None:
    """A job that reads until it is stopped; the last one fails."""
    while job.name != f"tensor_{COUNT - 1}":
        sources.refuse_when_stopped()
    raise MemoryError


@pytest.mark.parametrize("workers", [2, 3])
def test_a_failure_stops_the_others(workers: int) -> None:
    last = jobs()[-workers:]
    with pytest.raises(CheckpointError, match="tensor_39.*: not enough memory; fewer workers need less"):
        list(do_jobs(endless, last, workers))


def test_closing_stops_what_is_under_way() -> None:
    begun = threading.Event()

    def first_alone(job: Job, sources: Sources) -> None:
        if job.name == "tensor_0":
            assert begun.wait(60)
            return
        begun.set()
        endless(job, sources)

    results = do_jobs(first_alone, jobs(COUNT - 1), 2)
    first, _ = next(results)
    assert first.name == "tensor_0"
    results.close()
