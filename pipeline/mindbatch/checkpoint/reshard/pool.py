"""Doing the jobs of a reshard, in this process or in several."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path

from mindbatch.checkpoint.reshard.job import Job
from mindbatch.checkpoint.reshard.worker import Done, Failed, Workshop, work
from mindbatch.children import Child
from mindbatch.errors import CheckpointError
from mindbatch.storage import Storage

AHEAD = 2
"""Jobs that a process has at once: one that it does, and those that it need not wait for."""

SMALL_BYTES = 256 << 20
"""A reshard that writes less is done before other processes have started."""


def worker_count(asked: int | None, nbytes: int) -> int:
    """How many processes do the jobs; 1 is this one alone."""
    if asked is not None:
        return asked
    return 1 if nbytes < SMALL_BYTES else min(8, len(os.sched_getaffinity(0)))


def do_jobs(
    action: str, jobs: Iterable[Job], folder: Path, workers: int, storage: Storage
) -> Generator[Done, None, None]:
    """Does all jobs, the largest first, and yields each when it is done, in any order.

    workers: processes; with 1 it is done here, through `storage`. Closing the iterator ends the others.

    Raises:
        CheckpointError: a source is damaged, a value does not fit, or a process has died.
        StorageError: a target cannot be written.
    """
    ordered = sorted(jobs, key=lambda job: -job.nbytes)
    workers = min(workers, len(ordered))
    if workers > 1:
        return _in_processes(action, ordered, folder, workers)
    return _here(action, ordered, folder, storage)


def _here(action: str, jobs: Iterable[Job], folder: Path, storage: Storage) -> Generator[Done, None, None]:
    workshop = Workshop(folder, storage)
    try:
        for job in jobs:
            yield workshop.do(action, job)
    except BaseException:
        with contextlib.suppress(Exception):  # what went wrong first counts
            workshop.close()
        raise
    workshop.close()


def _in_processes(action: str, jobs: list[Job], folder: Path, workers: int) -> Generator[Done, None, None]:
    waiting = iter(jobs)
    processes: dict[Connection, Child] = {}
    left: dict[Connection, int] = {}
    try:
        for _ in range(workers):
            process = Child(work, str(folder))
            processes[process.connection] = process
            left[process.connection] = 0
        for connection in processes:
            for _ in range(AHEAD):
                left[connection] += _send_next(connection, processes[connection], action, waiting)
        while any(left.values()):
            for ready in wait([each for each, count in left.items() if count]):
                assert isinstance(ready, Connection)
                answer = _received(ready, processes[ready])
                left[ready] += _send_next(ready, processes[ready], action, waiting) - 1
                yield answer
    finally:
        for process in processes.values():
            process.end()


def _send_next(connection: Connection, process: Child, action: str, jobs: Iterator[Job]) -> int:
    """Sends a job, if there is one; how many were sent."""
    job = next(jobs, None)
    if job is None:
        return 0
    try:
        connection.send((action, job))
    except OSError:
        raise _death(process) from None
    return 1


def _received(connection: Connection, process: Child) -> Done:
    try:
        answer = connection.recv()
    except (EOFError, OSError):
        raise _death(process) from None
    if isinstance(answer, Failed):
        raise answer.error()
    assert isinstance(answer, Done)
    return answer


def _death(process: Child) -> CheckpointError:
    return CheckpointError(
        f"a process of the reshard has died ({process.death()}), perhaps for lack of memory; the same "
        "command goes on, and fewer workers need less"
    )
