"""Executes the plan of a reshard in threads, and resumes one that was killed; the target appears whole."""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import TypeVar

from mindbatch.checkpoint.error_lines import shown
from mindbatch.checkpoint.folders.digests import DIGESTS_NAME, Digests
from mindbatch.checkpoint.folders.resharded import JOURNAL_NAME, MARKER_NAME
from mindbatch.checkpoint.formats.open_file import OpenFile, OpenFiles, allow_open_files, open_tensor_file
from mindbatch.checkpoint.reshard.folder import (
    TargetFiles,
    exists,
    give_name,
    is_complete,
    keep_name,
    locked,
    make_folders,
    part_of,
    refuse_changed,
    refuse_source_in,
    refuse_without_space,
    remove_displaced,
    remove_tree,
)
from mindbatch.checkpoint.reshard.job import Job
from mindbatch.checkpoint.reshard.journal import Recorder, opened_journal, verified
from mindbatch.checkpoint.reshard.plan import Outcome, ReshardPlan, TargetTensor
from mindbatch.checkpoint.reshard.progress import Progress, silent
from mindbatch.checkpoint.reshard.replicas import compare
from mindbatch.checkpoint.reshard.write import Sources, Written, check_job, write_job
from mindbatch.io.errors import CheckpointError
from mindbatch.io.storage import Storage, write_whole, writing

SMALL_BYTES = 32 << 20
"""A reshard that writes less is done by the calling thread."""

Result = TypeVar("Result")


def execute_plan(
    plan: ReshardPlan,
    storage: Storage | None = None,
    progress: Progress = silent,
    *,
    in_background: bool | None = None,
    approve: Callable[[Path], None] | None = None,
) -> Outcome:
    """Makes the target folder, unless it exists already. Resumes where an earlier call was killed.

    in_background: True to sync in another thread, which is the default without a `storage`, whose operations
        come in a fixed order otherwise.
    approve: function that is called with the complete folder before it gets its name. Where it raises, the
        folder stays DIR.part, and the next call begins with it.

    Raises:
        ConfigError: the folder holds something else, or another process is writing it.
        CheckpointError: a source is damaged, values do not fit, or what was written does not read back.
        StorageError: something cannot be written.
    """
    if in_background is None:
        in_background = storage is None
    storage = storage or Storage()
    part = part_of(plan.target)
    refuse_source_in(part, plan)
    if exists(plan):
        keep_name(plan, storage)
        remove_displaced(plan, storage)
        _look_again(plan, plan.target, progress)
        return Outcome(is_new=False)
    allow_open_files(len(plan.sources) + len(plan.layouts))
    make_folders(part, storage)
    with locked(part):
        if exists(plan):  # another process has just ended
            keep_name(plan, storage)
            remove_tree(part, storage, last=[MARKER_NAME])
            _look_again(plan, plan.target, progress)
            return Outcome(is_new=False)
        outcome = Outcome()
        if is_complete(plan, part):
            _look_again(plan, part, progress)
            outcome.notes.append(f"{part}: was complete; it has only been given its name")
        else:
            compare(plan.replicas, progress)
            _make(plan, part, storage, progress, outcome, in_background=in_background)
        if approve is not None:
            approve(part)
        give_name(plan, part, storage)
    return outcome


def _make(
    plan: ReshardPlan,
    part: Path,
    storage: Storage,
    progress: Progress,
    outcome: Outcome,
    *,
    in_background: bool,
) -> None:
    with opened_journal(plan, part, storage, outcome) as (journal, noted):
        refuse_without_space(part, plan.layouts)
        with TargetFiles(part, storage) as files:
            files.prepare(plan.layouts)
            known = verified(part, noted, progress)
            outcome.kept = len(known)
            if len(known) < len(noted):
                outcome.notes.append(f"{part}: {len(noted) - len(known)} tensors are not as noted; made anew")
            recorder = Recorder(files, journal, plan.sync_bytes, in_background=in_background)
            with closing(recorder), closing(_write(plan, known, files, progress)) as all_written:
                for written in all_written:
                    recorder.take(written)
                    known |= {(tensor.file, tensor.tensor): tensor.digest for tensor in written}
                recorder.finish()
            # The heads, too, before digests and marker vouch for the files.
            files.sync()
        _finish(plan, part, known, storage, progress)


def _write(
    plan: ReshardPlan, known: Mapping[TargetTensor, str], files: TargetFiles, progress: Progress
) -> Generator[list[Written], None, None]:
    jobs = [*_unfinished(plan.jobs, known)]
    total = plan.nbytes
    done = total - sum(job.nbytes for job in jobs)
    progress("resharding", done, total)
    with closing(do_jobs(partial(write_job, write=files.write), jobs, plan.workers, plan.opened)) as results:
        for job, written in results:
            done += job.nbytes
            progress("resharding", done, total)
            yield written


def _unfinished(jobs: Iterable[Job], known: Mapping[TargetTensor, str]) -> Iterator[Job]:
    for job in jobs:
        left = tuple(writing for writing in job.writings if (writing.file, writing.name) not in known)
        if left:
            yield replace(job, writings=left)


def _finish(
    plan: ReshardPlan, part: Path, known: Mapping[TargetTensor, str], storage: Storage, progress: Progress
) -> None:
    """Writes everything besides the tensors, and the marker last."""
    for folder, files in plan.by_folder().items():
        digests = {
            name: {tensor: known[str(folder / name), tensor] for tensor in layout.extents}
            for name, layout in files.items()
        }
        heads = {name: layout.head_digest for name, layout in files.items()}
        write_whole(part / folder / DIGESTS_NAME, Digests(digests, heads).as_json(), storage)
    for name, data in plan.other_files.items():
        write_whole(part / name, data, storage)
    refuse_changed(plan)
    if plan.verify:
        # Reading back takes long, and is worth nothing against a source that changes meanwhile.
        _read_back(plan, part, progress)
        refuse_changed(plan)
    # The marker comes before the journal goes: a folder with neither would be nobody's after a kill.
    write_whole(part / MARKER_NAME, plan.marker_json(), storage)
    with writing(part):
        storage.remove(part / JOURNAL_NAME)
        storage.sync_folder(part)


def _look_again(plan: ReshardPlan, folder: Path, progress: Progress) -> None:
    """Compares what an earlier session has finished with the sources, if the plan verifies."""
    if not plan.verify:
        return
    compare(plan.replicas, progress)
    try:
        _read_back(plan, folder, progress)
    except CheckpointError as error:
        hint = f"unless the source is damaged, remove {folder}, and the same command makes it anew"
        raise CheckpointError(f"{problem}; {hint}" for problem in error.lines) from None


def _read_back(plan: ReshardPlan, part: Path, progress: Progress) -> None:
    """Compares every element of every file with its source."""
    done, total = 0, plan.nbytes
    with closing(do_jobs(partial(check_job, folder=part), plan.jobs, plan.workers, plan.opened)) as results:
        for job, _ in results:
            done += job.nbytes
            progress("reading back", done, total)


def worker_count(requested: int | None, nbytes: int) -> int:
    """Chooses the number of threads; 1: the calling one. One more than processors: it waits for the disk."""
    if requested is not None:
        return requested
    return 1 if nbytes < SMALL_BYTES else min(8, len(os.sched_getaffinity(0)) + 1)


def do_jobs(
    do: Callable[[Job, Sources], Result],
    jobs: Iterable[Job],
    workers: int,
    opened: OpenFile = open_tensor_file,
) -> Generator[tuple[Job, Result], None, None]:
    """Does all jobs, the largest first, and yields each with its result as they are done.

    workers: number of threads, which read, hash, convert and write without the interpreter's lock; 1 for the
        calling thread. Closing the iterator stops them.
    opened: function that opens a file of the source.

    Raises:
        CheckpointError: a source is damaged, a value does not fit, or there is not enough memory.
        StorageError: a target cannot be written.
    """
    ordered = sorted(jobs, key=lambda job: -job.nbytes)
    workers = max(1, min(workers, len(ordered)))
    stop = Event()
    with OpenFiles(opened) as files:
        idle: SimpleQueue[Sources] = SimpleQueue()  # with buffers, for a thread each
        for _ in range(workers):
            idle.put(Sources(files, stop))

        def done(job: Job) -> tuple[Job, Result]:
            sources = idle.get()
            try:
                return job, do(job, sources)
            except MemoryError:
                error = "not enough memory; lower workers"
                raise CheckpointError(f"tensor {shown(job.name)}: {error}") from None
            finally:
                idle.put(sources)

        if workers == 1:
            yield from map(done, ordered)
            return
        pool = ThreadPoolExecutor(workers, "reshard")
        try:
            for future in as_completed([pool.submit(done, job) for job in ordered]):
                yield future.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
