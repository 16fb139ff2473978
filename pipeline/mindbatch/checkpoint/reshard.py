"""Carrying out a reshard: written beside, proved, marked as whole and given its name; or taken up again."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.digests import DIGESTS_NAME, Digests, tensor_digest
from mindbatch.checkpoint.file_layout import FileLayout
from mindbatch.checkpoint.open_file import open_tensor_file
from mindbatch.checkpoint.reshard_files import Recorder, TargetFiles, refuse_without_room
from mindbatch.checkpoint.reshard_folder import (
    MARKER_NAME,
    changed_settings,
    is_ours,
    locked,
    make_folders,
    marker_json,
    part_of,
    read_marker,
    refuse_foreign,
    remove_tree,
)
from mindbatch.checkpoint.reshard_job import Job
from mindbatch.checkpoint.reshard_journal import JOURNAL_NAME, Journal, JournalContent, read_journal
from mindbatch.checkpoint.reshard_pool import do_jobs
from mindbatch.checkpoint.reshard_worker import CHECK, WRITE
from mindbatch.checkpoint.reshard_write import Written
from mindbatch.errors import CheckpointError, ConfigError
from mindbatch.storage import Storage, StorageError, remove_leftovers, write_whole

Progress = Callable[[str, int, int], None]
"""Is told what is being done, the bytes that are done, and all."""

Place = tuple[str, str]
"""File and tensor."""


@dataclass(frozen=True)
class Order:
    """A reshard that was asked for, planned and proved.

    settings: what the user may compare, as JSON. source, plan: what identifies both, as JSON.
    layouts: of the files of tensors, by path below the target. beside: further files with their contents.
    replace: another reshard in the target folder gives way.
    """

    target: Path
    settings: Mapping[str, Any]
    source: Any
    plan: str
    layouts: Mapping[str, FileLayout]
    jobs: tuple[Job, ...]
    beside: Mapping[str, bytes]
    workers: int = 1
    verify: bool = False
    replace: bool = False

    @property
    def identity(self) -> str:
        """Of what the target will hold: equal for two orders that make the same files."""
        files: dict[str, Any] = {
            name: [lay.total_bytes, lay.head_digest] for name, lay in self.layouts.items()
        }
        files |= {name: hashlib.sha256(data).hexdigest() for name, data in self.beside.items()}
        whole = json.dumps([self.settings, self.source, self.plan, files], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(job.nbytes for job in self.jobs)


@dataclass
class Outcome:
    """How it went. is_new: False when the target was there already. kept: tensors of an earlier session."""

    is_new: bool = True
    kept: int = 0
    notes: list[str] = field(default_factory=list)


def _silent(what: str, done: int, total: int) -> None:
    pass


def carry_out(order: Order, storage: Storage | None = None, progress: Progress = _silent) -> Outcome:
    """Makes the target folder, or finds that it is made. Killed at any moment, it goes on when called again.

    Raises:
        ConfigError: the folder holds something else, or another process is at it.
        CheckpointError: a source is damaged, values do not fit, or what was written does not read back.
        StorageError: something cannot be written.
    """
    storage = storage or Storage()
    outcome = Outcome()
    if _is_there(order):
        outcome.is_new = False
        _remove_displaced(order, storage)
        return outcome
    part = part_of(order.target)
    make_folders(part, storage)
    with locked(part):
        if _is_complete(order, part):
            outcome.notes.append(f"{part}: was complete; it has only been given its name")
        else:
            _make(order, part, storage, progress, outcome)
        _give_name(order, part, storage)
    return outcome


def _is_there(order: Order) -> bool:
    """Whether the target folder is what is wanted. ConfigError when it is something that must not go."""
    target = order.target
    if not os.path.lexists(target) or (target.is_dir() and not os.listdir(target)):
        return False
    marker = read_marker(target) if target.is_dir() else None
    if marker is None:
        raise ConfigError(f"target.dir={target}: exists and was not written by reshard; give another folder")
    if marker.identity == order.identity:
        return True
    if not order.replace:
        changed = changed_settings(marker.settings, order.settings)
        raise ConfigError(
            f"target.dir={target}: holds another reshard ({changed}); give another folder, or "
            "target.replace=true"
        )
    refuse_foreign(target, marker)
    return False


def _is_complete(order: Order, part: Path) -> bool:
    """Whether an earlier session was killed just before the rename."""
    marker = None if (part / JOURNAL_NAME).exists() else read_marker(part)
    return marker is not None and marker.identity == order.identity


def _remove_displaced(order: Order, storage: Storage) -> None:
    """What was in the target folder before it was replaced, if a kill has left that."""
    part = part_of(order.target)
    if part.is_dir() and not (part / JOURNAL_NAME).exists() and read_marker(part):
        with locked(part):
            remove_tree(part, storage, last=[MARKER_NAME])


def _make(order: Order, part: Path, storage: Storage, progress: Progress, outcome: Outcome) -> None:
    with _journal(order, part, storage, outcome) as (journal, noted):
        refuse_without_room(part, order.layouts)
        with TargetFiles(part, order.layouts, storage) as files:
            known = _verified(part, noted, progress)
            outcome.kept = len(known)
            if len(known) < len(noted):
                outcome.notes.append(f"{part}: {len(noted) - len(known)} tensors are not as noted; made anew")
            recorder = Recorder(files, journal, in_background=order.workers > 1)
            with closing(recorder), closing(_write(order, known, part, storage, progress)) as all_written:
                for written in all_written:
                    recorder.take(written)
                    known |= {(each.file, each.tensor): each.digest for each in written}
                recorder.finish()
            files.sync()
        _finish(order, part, known, storage, progress)


@contextmanager
def _journal(
    order: Order, part: Path, storage: Storage, outcome: Outcome
) -> Iterator[tuple[Journal, Mapping[Place, Written]]]:
    """The journal and what it has: that of an earlier session if it was the same reshard, else a new one."""
    path = part / JOURNAL_NAME
    found = _earlier(order, part, outcome)
    with closing(Journal(path, storage)) as journal:
        if found is None:
            remove_tree(part, storage, last=[MARKER_NAME, JOURNAL_NAME], keep=True)
            journal.start({"identity": order.identity, "settings": order.settings})
            yield journal, {}
        else:
            for folder in {part, *((part / name).parent for name in order.layouts)}:
                if folder.is_dir():
                    remove_leftovers(folder, storage)
            journal.go_on(found)
            held = {(name, tensor) for name, layout in order.layouts.items() for tensor in layout.extents}
            entries = {(each.file, each.tensor): each for each in found.written}
            yield journal, {place: each for place, each in entries.items() if place in held}


def _earlier(order: Order, part: Path, outcome: Outcome) -> JournalContent | None:
    """The journal of an earlier session, if it was of the same reshard."""
    if not is_ours(part):
        raise ConfigError(f"{part}: is not of a reshard; must be, or must not exist")
    path = part / JOURNAL_NAME
    found = read_journal(path) if path.exists() else None
    if found is None or found.head.get("identity") == order.identity:
        return found
    changed = changed_settings(found.head.get("settings") or {}, order.settings)
    outcome.notes.append(f"{part}: was begun as another reshard ({changed}); begun anew")
    return None


def _verified(part: Path, noted: Mapping[Place, Written], progress: Progress) -> dict[Place, str]:
    """The digests of the tensors that are as the journal says; all of them are read, in threads."""
    known: dict[Place, str] = {}
    done, total = 0, sum(each.nbytes for each in noted.values())
    by_file: dict[str, list[str]] = {}
    for file, tensor in noted:
        by_file.setdefault(file, []).append(tensor)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name, tensors in by_file.items():
            with open_tensor_file(part / name) as opened:
                there = [tensor for tensor in tensors if tensor in opened.tensors]
                for tensor, digest in zip(
                    there, pool.map(partial(tensor_digest, opened), there), strict=True
                ):
                    each = noted[name, tensor]
                    if digest == each.digest:
                        known[name, tensor] = digest
                    done += each.nbytes
                    progress("checking what is there", done, total)
    return known


def _write(
    order: Order, known: Mapping[Place, str], part: Path, storage: Storage, progress: Progress
) -> Generator[tuple[Written, ...], None, None]:
    """Does what is left to do."""
    jobs = [*_unfinished(order.jobs, known)]
    done = order.nbytes - sum(job.nbytes for job in jobs)
    progress("resharding", done, order.nbytes)
    with closing(do_jobs(WRITE, jobs, part, order.workers, storage)) as results:
        for result in results:
            done += result.nbytes
            progress("resharding", done, order.nbytes)
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
    for folder, files in _by_folder(order.layouts).items():
        digests = {
            Path(name).name: {tensor: known[name, tensor] for tensor in layout.extents}
            for name, layout in files.items()
        }
        heads = {Path(name).name: layout.head_digest for name, layout in files.items()}
        write_whole(part / folder / DIGESTS_NAME, Digests(digests, heads).as_json(), storage)
    for name, data in order.beside.items():
        write_whole(part / name, data, storage)
    if order.verify:
        _read_back(order, part, storage, progress)
    write_whole(part / MARKER_NAME, marker_json(_marker(order)), storage)
    try:
        storage.remove(part / JOURNAL_NAME)
        storage.sync_folder(part)
    except OSError as error:
        raise StorageError.writing(part, error) from error


def _by_folder(layouts: Mapping[str, FileLayout]) -> dict[Path, dict[str, FileLayout]]:
    found: dict[Path, dict[str, FileLayout]] = {}
    for name, layout in layouts.items():
        found.setdefault(Path(name).parent, {})[name] = layout
    return found


def _read_back(order: Order, part: Path, storage: Storage, progress: Progress) -> None:
    """Every element of every file, compared with its source."""
    done = 0
    with closing(do_jobs(CHECK, order.jobs, part, order.workers, storage)) as results:
        for result in results:
            done += result.nbytes
            progress("reading back", done, order.nbytes)


def _marker(order: Order) -> dict[str, Any]:
    folders = {str(folder / DIGESTS_NAME): None for folder in _by_folder(order.layouts)}
    sizes: dict[str, int | None] = {name: layout.total_bytes for name, layout in order.layouts.items()}
    sizes |= folders
    sizes |= {name: len(data) for name, data in order.beside.items()}
    return {
        "identity": order.identity,
        "settings": order.settings,
        "source": order.source,
        "plan": order.plan,
        "files": sizes,
    }


def _give_name(order: Order, part: Path, storage: Storage) -> None:
    """The rename; a reshard that is to give way is exchanged for the new one first, and then removed."""
    target = order.target
    gives_way = order.replace and read_marker(target) is not None
    try:
        if gives_way:
            storage.exchange(part, target)
        else:
            storage.replace(part, target)
        storage.sync_folder(target.parent)
    except OSError as error:
        if gives_way and error.errno in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise CheckpointError(
                f"{target}: this file system cannot replace a folder at once; remove it, and the same command "
                "gives the new one its name"
            ) from error
        raise StorageError.writing(target, error) from error
    if gives_way:
        remove_tree(part, storage, last=[MARKER_NAME])
