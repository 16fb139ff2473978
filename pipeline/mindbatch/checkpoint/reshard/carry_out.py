"""Carrying out a reshard: written beside, proved, marked as whole and given its name; or taken up again."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from mindbatch.checkpoint.folders.digests import DIGESTS_NAME, Digests
from mindbatch.checkpoint.folders.reshard_marker import JOURNAL_NAME, MARKER_NAME
from mindbatch.checkpoint.open_files import allow_open_files
from mindbatch.checkpoint.reshard.files import Recorder, TargetFiles, refuse_without_room
from mindbatch.checkpoint.reshard.folder import locked, make_folders, marker_json, part_of, remove_tree
from mindbatch.checkpoint.reshard.job import Job
from mindbatch.checkpoint.reshard.order import Order, Outcome, Place
from mindbatch.checkpoint.reshard.pool import do_jobs
from mindbatch.checkpoint.reshard.progress import Progress, silent
from mindbatch.checkpoint.reshard.replicas import compare
from mindbatch.checkpoint.reshard.resume import opened_journal, verified
from mindbatch.checkpoint.reshard.target import (
    give_name,
    is_complete,
    is_there,
    keep_name,
    refuse_changed,
    refuse_source_in,
    remove_displaced,
)
from mindbatch.checkpoint.reshard.worker import CHECK, WRITE
from mindbatch.checkpoint.reshard.write import Written
from mindbatch.errors import CheckpointError
from mindbatch.storage import Storage, StorageError, write_whole


def carry_out(
    order: Order,
    storage: Storage | None = None,
    progress: Progress = silent,
    *,
    in_background: bool | None = None,
    approve: Callable[[Path], None] | None = None,
) -> Outcome:
    """Makes the target folder, or finds that it is made. Killed at any moment, it goes on when called again.

    in_background: syncing goes on beside the work, in another thread; not, by default, with a `storage` that
        was given, so that its operations come in a fixed order.

    approve: is called with the folder, wherever it is by then, once all is in it, and raises what keeps it
        from getting its name; it stays beside and is looked at again by the next call.

    Raises:
        ConfigError: the folder holds something else, or another process is at it.
        CheckpointError: a source is damaged, values do not fit, or what was written does not read back.
        StorageError: something cannot be written.
    """
    if in_background is None:
        in_background = storage is None
    storage = storage or Storage()
    part = part_of(order.target)
    refuse_source_in(part, order)
    if is_there(order):
        keep_name(order, storage)
        remove_displaced(order, storage)
        _look_again(order, order.target, storage, progress)
        return Outcome(is_new=False)
    allow_open_files(len(order.sources) + len(order.layouts))
    make_folders(part, storage)
    with locked(part):
        if is_there(order):  # another process has just ended
            keep_name(order, storage)
            remove_tree(part, storage, last=[MARKER_NAME])
            _look_again(order, order.target, storage, progress)
            return Outcome(is_new=False)
        outcome = Outcome()
        if is_complete(order, part):
            _look_again(order, part, storage, progress)
            outcome.notes.append(f"{part}: was complete; it has only been given its name")
        else:
            compare(order.twins, progress)
            _make(order, part, storage, progress, outcome, in_background=in_background)
        if approve is not None:
            approve(part)
        give_name(order, part, storage)
    return outcome


def _make(
    order: Order, part: Path, storage: Storage, progress: Progress, outcome: Outcome, *, in_background: bool
) -> None:
    with opened_journal(order, part, storage, outcome) as (journal, noted):
        refuse_without_room(part, order.layouts)
        with TargetFiles(part, order.layouts, storage) as files:
            known = verified(part, noted, progress)
            outcome.kept = len(known)
            if len(known) < len(noted):
                outcome.notes.append(f"{part}: {len(noted) - len(known)} tensors are not as noted; made anew")
            recorder = Recorder(files, journal, order.sync_bytes, in_background=in_background)
            with closing(recorder), closing(_write(order, known, part, storage, progress)) as all_written:
                for written in all_written:
                    recorder.take(written)
                    known |= {(each.file, each.tensor): each.digest for each in written}
                recorder.finish()
            files.sync()
        _finish(order, part, known, storage, progress)


def _write(
    order: Order, known: Mapping[Place, str], part: Path, storage: Storage, progress: Progress
) -> Generator[tuple[Written, ...], None, None]:
    """Does what is left to do."""
    jobs = [*_unfinished(order.jobs, known)]
    total = order.nbytes
    done = total - sum(job.nbytes for job in jobs)
    progress("resharding", done, total)
    with closing(do_jobs(WRITE, jobs, part, order.workers, storage)) as results:
        for result in results:
            done += result.nbytes
            progress("resharding", done, total)
            yield result.written


def _unfinished(jobs: Iterable[Job], known: Mapping[Place, str]) -> Iterator[Job]:
    """The jobs with what is not known to be written."""
    for job in jobs:
        left = tuple(writing for writing in job.writings if (writing.file, writing.name) not in known)
        if left:
            yield replace(job, writings=left)


def _finish(
    order: Order, part: Path, known: Mapping[Place, str], storage: Storage, progress: Progress
) -> None:
    """Everything besides the tensors, and the marker last."""
    for folder, files in order.by_folder().items():
        digests = {
            name: {tensor: known[str(folder / name), tensor] for tensor in layout.extents}
            for name, layout in files.items()
        }
        heads = {name: layout.head_digest for name, layout in files.items()}
        write_whole(part / folder / DIGESTS_NAME, Digests(digests, heads).as_json(), storage)
    for name, data in order.beside.items():
        write_whole(part / name, data, storage)
    refuse_changed(order)
    if order.verify:
        _read_back(order, part, storage, progress)
        refuse_changed(order)
    write_whole(part / MARKER_NAME, marker_json(order.marker()), storage)
    try:
        storage.remove(part / JOURNAL_NAME)
        storage.sync_folder(part)
    except OSError as error:
        raise StorageError.writing(part, error) from error


def _look_again(order: Order, folder: Path, storage: Storage, progress: Progress) -> None:
    """Compares what an earlier session has finished, where that is asked for."""
    if not order.verify:
        return
    compare(order.twins, progress)
    try:
        _read_back(order, folder, storage, progress)
    except CheckpointError as error:
        hint = f"unless the source is damaged, remove {folder}, and the same command makes it anew"
        raise CheckpointError(f"{fault}; {hint}" for fault in error.faults) from None


def _read_back(order: Order, part: Path, storage: Storage, progress: Progress) -> None:
    """Every element of every file, compared with its source."""
    done, total = 0, order.nbytes
    with closing(do_jobs(CHECK, order.jobs, part, order.workers, storage)) as results:
        for result in results:
            done += result.nbytes
            progress("reading back", done, total)
