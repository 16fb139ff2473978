"""Runs the jobs of a reshard, in this process or in several."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

from mindbatch.checkpoint.reshard.check import check_job
from mindbatch.checkpoint.reshard.files import TargetFiles
from mindbatch.checkpoint.reshard.job import Job
from mindbatch.checkpoint.reshard.read import Sources
from mindbatch.checkpoint.reshard.write import Written, write_job
from mindbatch.children import Child
from mindbatch.errors import CheckpointError, MindBatchError
from mindbatch.storage import Storage, StorageError

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
    runner = JobRunner(folder, storage)
    try:
        for job in jobs:
            yield runner.do(action, job)
    except BaseException:
        with contextlib.suppress(Exception):  # what went wrong first counts
            runner.close()
        raise
    runner.close()


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


WRITE, CHECK = "write", "check"
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Done:
    """A job that was done; `written` is empty when it was a check."""

    name: str
    nbytes: int
    written: tuple[Written, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The lines of the error that ended a job."""

    faults: tuple[str, ...]
    is_storage: bool

    def error(self) -> MindBatchError:
        """The exception to raise where the job was asked for."""
        return (StorageError if self.is_storage else CheckpointError)(self.faults)


class JobRunner:
    """What does jobs, in this process: writes them into a folder, or checks what is there."""

    def __init__(self, folder: Path, storage: Storage) -> None:
        self._folder = folder
        self._sources = Sources()
        self._targets = TargetFiles(folder, storage)

    def do(self, action: str, job: Job) -> Done:
        """Does one job. Raises CheckpointError or StorageError."""
        if action == CHECK:
            check_job(job, self._folder, self._sources)
            return Done(job.name, job.nbytes)
        return Done(job.name, job.nbytes, tuple(write_job(job, self._sources, self._targets)))

    def close(self) -> None:
        """Closes all files."""
        self._sources.close()
        self._targets.close()


def work(connection: Connection, folder: str) -> None:
    """The whole life of the process: until there is nothing more to do, or nobody to do it for.

    folder: the target's.
    """
    runner = JobRunner(Path(folder), Storage())
    asked: SimpleQueue[tuple[str, Job] | None] = SimpleQueue()
    # A job may be too large for the pipe: if it were not taken in while an answer is sent, both sides would
    # wait for each other to read.
    Thread(target=_take_in, args=(connection, asked), daemon=True).start()
    with suppress(BrokenPipeError):
        while (job := asked.get()) is not None:
            connection.send(_answer(runner, *job))


def _take_in(connection: Connection, asked: SimpleQueue[tuple[str, Job] | None]) -> None:
    """Receives until nobody is at the other end any more."""
    try:
        with suppress(EOFError, OSError):
            while True:
                asked.put(connection.recv())
    finally:
        asked.put(None)


def _answer(runner: JobRunner, action: str, job: Job) -> Done | Failed:
    no_memory = "not enough memory; fewer workers need less"
    return answer_of(lambda: runner.do(action, job), f"tensor {job.name!a}: ", no_memory)


def answer_of(work: Callable[[], Answer], subject: str, no_memory: str) -> Answer | Failed:
    """What a child process sends to its parent, which shows errors: the child has no place to.

    subject: begins the lines of what is not an error of the project's. no_memory: the line of a MemoryError.
    """
    try:
        return work()
    except MindBatchError as error:
        return Failed(error.faults, isinstance(error, StorageError))
    except MemoryError:
        return Failed((f"{subject}{no_memory}",), False)
    except Exception as error:
        text = " ".join(str(error).split())
        return Failed((f"{subject}{type(error).__name__}: {text}",), False)
