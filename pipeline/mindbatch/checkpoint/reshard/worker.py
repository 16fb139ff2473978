"""A process that does jobs of a reshard: it is sent jobs, and answers each with what it has written."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from mindbatch.checkpoint.reshard.check import check_job
from mindbatch.checkpoint.reshard.job import Job
from mindbatch.checkpoint.reshard.read import Sources
from mindbatch.checkpoint.reshard.write import Targets, Written, write_job
from mindbatch.errors import CheckpointError, MindBatchError
from mindbatch.storage import Storage, StorageError

WRITE, CHECK = "write", "check"


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


class Workshop:
    """What does jobs, in this process: writes them into a folder, or checks what is there."""

    def __init__(self, folder: Path, storage: Storage) -> None:
        self._folder = folder
        self._sources = Sources()
        self._targets = Targets(folder, storage)

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
    workshop = Workshop(Path(folder), Storage())
    orders: SimpleQueue[tuple[str, Job] | None] = SimpleQueue()
    # A job may be too large for the pipe: if it were not taken in while an answer is sent, both sides would
    # wait for each other to read.
    Thread(target=_take_in, args=(connection, orders), daemon=True).start()
    with suppress(BrokenPipeError):
        while (order := orders.get()) is not None:
            connection.send(_answer(workshop, *order))


def _take_in(connection: Connection, orders: SimpleQueue[tuple[str, Job] | None]) -> None:
    """Receives until nobody is at the other end any more."""
    try:
        with suppress(EOFError, OSError):
            while True:
                orders.put(connection.recv())
    finally:
        orders.put(None)


def _answer(workshop: Workshop, action: str, job: Job) -> Done | Failed:
    try:
        return workshop.do(action, job)
    except MindBatchError as error:
        return Failed(error.faults, isinstance(error, StorageError))
    except MemoryError:
        return Failed((f"tensor {job.name!a}: not enough memory; fewer workers need less",), False)
    except Exception as error:  # the parent shows it: this process has no place to
        text = " ".join(str(error).split())
        return Failed((f"tensor {job.name!a}: {type(error).__name__}: {text}",), False)
