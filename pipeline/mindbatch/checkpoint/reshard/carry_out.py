"""Carrying out a reshard: written beside, proved, marked as whole and given its name; or taken up again."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from mindbatch.checkpoint.folders.digests import DIGESTS_NAME, Digests
from mindbatch.checkpoint.folders.resharded import JOURNAL_NAME, MARKER_NAME
from mindbatch.checkpoint.formats.open_file import allow_open_files
from mindbatch.checkpoint.reshard.files import Recorder, TargetFiles, refuse_without_room
from mindbatch.checkpoint.reshard.folder import (
    give_name,
    is_complete,
    is_there,
    keep_name,
    locked,
    make_folders,
    marker_json,
    part_of,
    refuse_changed,
    refuse_source_in,
    remove_displaced,
    remove_tree,
)
from mindbatch.checkpoint.reshard.job import Job
from mindbatch.checkpoint.reshard.journal import opened_journal, verified
from mindbatch.checkpoint.reshard.plan import Outcome, Place, ReshardPlan
from mindbatch.checkpoint.reshard.pool import CHECK, WRITE, do_jobs
from mindbatch.checkpoint.reshard.progress import Progress, silent
from mindbatch.checkpoint.reshard.replicas import compare
from mindbatch.checkpoint.reshard.write import Written
from mindbatch.io.errors import CheckpointError
from mindbatch.io.storage import Storage, write_whole, writing


def carry_out(
    plan: ReshardPlan,
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
    part = part_of(plan.target)
    refuse_source_in(part, plan)
    if is_there(plan):
        keep_name(plan, storage)
        remove_displaced(plan, storage)
        _look_again(plan, plan.target, storage, progress)
        return Outcome(is_new=False)
    allow_open_files(len(plan.sources) + 2 * len(plan.layouts))  # written, and synced meanwhile
    make_folders(part, storage)
    with locked(part):
        if is_there(plan):  # another process has just ended
            keep_name(plan, storage)
            remove_tree(part, storage, last=[MARKER_NAME])
            _look_again(plan, plan.target, storage, progress)
            return Outcome(is_new=False)
        outcome = Outcome()
        if is_complete(plan, part):
            _look_again(plan, part, storage, progress)
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
        refuse_without_room(part, plan.layouts)
        with TargetFiles(part, storage) as files:
            files.prepare(plan.layouts)
            known = verified(part, noted, progress)
            outcome.kept = len(known)
            if len(known) < len(noted):
                outcome.notes.append(f"{part}: {len(noted) - len(known)} tensors are not as noted; made anew")
            recorder = Recorder(files, journal, plan.sync_bytes, in_background=in_background)
            with closing(recorder), closing(_write(plan, known, part, storage, progress)) as all_written:
                for written in all_written:
                    recorder.take(written)
                    known |= {(tensor.file, tensor.tensor): tensor.digest for tensor in written}
                recorder.finish()
            # The heads, too, before digests and marker vouch for the files.
            files.sync()
        _finish(plan, part, known, storage, progress)


def _write(
    plan: ReshardPlan, known: Mapping[Place, str], part: Path, storage: Storage, progress: Progress
) -> Generator[tuple[Written, ...], None, None]:
    jobs = [*_unfinished(plan.jobs, known)]
    total = plan.nbytes
    done = total - sum(job.nbytes for job in jobs)
    progress("resharding", done, total)
    with closing(do_jobs(WRITE, jobs, part, plan.workers, storage)) as results:
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
    plan: ReshardPlan, part: Path, known: Mapping[Place, str], storage: Storage, progress: Progress
) -> None:
    """Everything besides the tensors, and the marker last."""
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
        _read_back(plan, part, storage, progress)
        refuse_changed(plan)
    # The marker comes before the journal goes: a folder with neither would be nobody's after a kill.
    write_whole(part / MARKER_NAME, marker_json(plan.marker()), storage)
    with writing(part):
        storage.remove(part / JOURNAL_NAME)
        storage.sync_folder(part)


def _look_again(plan: ReshardPlan, folder: Path, storage: Storage, progress: Progress) -> None:
    """Compares what an earlier session has finished, where that is asked for."""
    if not plan.verify:
        return
    compare(plan.replicas, progress)
    try:
        _read_back(plan, folder, storage, progress)
    except CheckpointError as error:
        hint = f"unless the source is damaged, remove {folder}, and the same command makes it anew"
        raise CheckpointError(f"{fault}; {hint}" for fault in error.faults) from None


def _read_back(plan: ReshardPlan, part: Path, storage: Storage, progress: Progress) -> None:
    """Every element of every file, compared with its source."""
    done, total = 0, plan.nbytes
    with closing(do_jobs(CHECK, plan.jobs, part, plan.workers, storage)) as results:
        for result in results:
            done += result.nbytes
            progress("reading back", done, total)
