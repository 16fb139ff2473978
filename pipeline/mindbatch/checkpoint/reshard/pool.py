"""Runs the jobs of a reshard, one after the other or in several threads."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.formats.open_file import OpenFiles
from mindbatch.checkpoint.reshard.files import TargetFiles
from mindbatch.checkpoint.reshard.job import Job
from mindbatch.checkpoint.reshard.read import Sources
from mindbatch.checkpoint.reshard.write import Written, check_job, write_job
from mindbatch.io.errors import CheckpointError
from mindbatch.io.storage import Storage

SMALL_BYTES = 32 << 20
"""A reshard that writes less is done at once."""

WRITE, CHECK = "write", "check"


@dataclass(frozen=True, slots=True)
class Done:
    """A job that was done; `written` is empty when it was a check."""

    name: str
    nbytes: int
    written: tuple[Written, ...] = ()


def worker_count(asked: int | None, nbytes: int) -> int:
    """Chooses the number of threads; 1: the calling one. One more than processors: it waits for the disk."""
    if asked is not None:
        return asked
    return 1 if nbytes < SMALL_BYTES else min(8, len(os.sched_getaffinity(0)) + 1)


def do_jobs(
    action: str, jobs: Iterable[Job], folder: Path, workers: int, storage: Storage
) -> Generator[Done, None, None]:
    """Does all jobs, the largest first, and yields each when it is done, in any order.

    workers: threads, which read, hash, convert and write without the interpreter's lock; with 1 it is done
        in this one. Closing the iterator stops them, whatever they do.

    Raises:
        CheckpointError: a source is damaged, a value does not fit, or there is not enough memory.
        StorageError: a target cannot be written.
    """
    ordered = sorted(jobs, key=lambda job: -job.nbytes)
    workers = min(workers, len(ordered))
    if workers > 1:
        return _in_threads(action, ordered, folder, workers, storage)
    return _here(action, ordered, folder, storage)


def _here(action: str, jobs: Iterable[Job], folder: Path, storage: Storage) -> Generator[Done, None, None]:
    with _runners(1, folder, storage) as (runner,):
        for job in jobs:
            yield runner.do(action, job)


def _in_threads(
    action: str, jobs: list[Job], folder: Path, workers: int, storage: Storage
) -> Generator[Done, None, None]:
    stop = Event()
    idle: SimpleQueue[JobRunner] = SimpleQueue()

    def done(job: Job) -> Done:
        runner = idle.get()
        try:
            return runner.do(action, job)
        finally:
            idle.put(runner)

    with _runners(workers, folder, storage, stop) as runners:
        for runner in runners:
            idle.put(runner)
        pool = ThreadPoolExecutor(workers, "reshard")
        try:
            for future in as_completed([pool.submit(done, job) for job in jobs]):
                yield future.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _runners(
    count: int, folder: Path, storage: Storage, stop: Event | None = None
) -> Iterator[list[JobRunner]]:
    """So many, which share files that are closed at the end."""
    with OpenFiles() as files, TargetFiles(folder, storage) as targets:
        yield [JobRunner(folder, Sources(files, stop), targets) for _ in range(count)]
        targets.close()  # where nothing went wrong before, what goes wrong here counts


@dataclass(frozen=True)
class JobRunner:
    """Runner of jobs, in one thread: writes them into a folder, or checks what is there."""

    folder: Path
    sources: Sources
    targets: TargetFiles

    def do(self, action: str, job: Job) -> Done:
        """Does one job. Raises CheckpointError, StorageError, or CancelledError once it has been stopped."""
        try:
            if action == CHECK:
                check_job(job, self.folder, self.sources)
                return Done(job.name, job.nbytes)
            return Done(job.name, job.nbytes, tuple(write_job(job, self.sources, self.targets)))
        except MemoryError:
            fault = "not enough memory; fewer workers need less"
            raise CheckpointError(f"tensor {shown(job.name)}: {fault}") from None
