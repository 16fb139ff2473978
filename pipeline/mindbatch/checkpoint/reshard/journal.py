"""The journal of an unfinished reshard lists the tensors that are on the disk, each with its digest.

The first line identifies the reshard; each other line was appended after its tensor had been synced.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mindbatch.checkpoint.folders.digests import DIGESTS_NAME, tensor_digest
from mindbatch.checkpoint.folders.resharded import JOURNAL_NAME, MARKER_NAME
from mindbatch.checkpoint.formats.open_file import open_tensor_file
from mindbatch.checkpoint.reshard.folder import (
    TargetFiles,
    changed_settings,
    is_ours,
    names_below,
    remove_tree,
)
from mindbatch.checkpoint.reshard.plan import Outcome, ReshardPlan, TargetTensor
from mindbatch.checkpoint.reshard.progress import Progress
from mindbatch.checkpoint.reshard.write import Written
from mindbatch.io.closing import Closing
from mindbatch.io.errors import ConfigError
from mindbatch.io.journal import JournalWriter
from mindbatch.io.regular_file import read_regular
from mindbatch.io.storage import Storage, StorageError, remove_leftovers, write_whole, writing

_MAX_JOURNAL_BYTES = 1 << 30  # a line of 200 bytes for each tensor of a thousand ranks


@dataclass(frozen=True)
class JournalContent:
    """Content of a journal. head: its first line. size: number of bytes before the first torn line."""

    head: Mapping[str, Any]
    written: tuple[Written, ...]
    size: int


def read_journal(path: Path) -> JournalContent | None:
    """Reads a journal; None if it has no head. StorageError if it cannot be read."""
    try:
        data = read_regular(path, _MAX_JOURNAL_BYTES)
    except OSError as error:
        raise StorageError.reading(path, error) from error
    head: Mapping[str, Any] | None = None
    written: list[Written] = []
    size = 0
    for line in data.splitlines(keepends=True):
        match _entry(line):
            case dict(entry) if head is None:
                head = entry
            case [str(file), str(tensor), str(digest), int(nbytes)] if head is not None:
                written.append(Written(file, tensor, digest, nbytes))
            case _:  # nothing behind a torn line is trusted; `Journal` cuts it off
                break
        size += len(line)
    return None if head is None else JournalContent(head, tuple(written), size)


class Journal(Closing):
    """The journal, opened to be written at its end. Raises StorageError."""

    def __init__(
        self,
        path: Path,
        storage: Storage,
        earlier: JournalContent | None,
        head: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """earlier: content of a journal to continue, without its torn end; None begins one with `head`."""
        self._path = path
        first = _line({**head})
        if earlier is None:
            write_whole(path, first, storage)
        with writing(path):
            self._writer = JournalWriter(path, earlier.size if earlier else len(first), storage)

    def append(self, written: Iterable[Written]) -> None:
        """Notes tensors that are on the disk; returns when the notes are on it, too."""
        with writing(self._path):
            for tensor in written:
                self._writer.append(_line([*astuple(tensor)]))
            self._writer.commit()

    def close(self) -> None:
        self._writer.close()


def _line(entry: object) -> bytes:
    return json.dumps(entry, sort_keys=True).encode() + b"\n"


def _entry(line: bytes) -> Any:
    """The entry of a line; None where it is torn."""
    if not line.endswith(b"\n"):
        return None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


class Recorder:
    """Notes finished tensors in the journal, some at a time, each after its file was synced.

    sync_bytes: number of bytes that may be in files and not noted.
    in_background: True to sync and note in a thread, while the work goes on.
    """

    def __init__(self, files: TargetFiles, journal: Journal, sync_bytes: int, *, in_background: bool) -> None:
        self._sync_bytes = sync_bytes
        self._files = files
        self._journal = journal
        self._waiting: list[Written] = []
        self._pool = ThreadPoolExecutor(1)
        self._in_background = in_background
        self._running: Future[None] | None = None

    def take(self, written: Iterable[Written]) -> None:
        """Takes tensors that are in their files. StorageError if an earlier sync has failed."""
        self._waiting += written
        if sum(tensor.nbytes for tensor in self._waiting) < self._sync_bytes:
            return
        if self._running is None or self._running.done():
            self._begin()

    def finish(self) -> None:
        """Notes everything that was taken."""
        self._begin().result()

    def close(self) -> None:
        """Waits for the notes that are being written; begins no others."""
        self._pool.shutdown()

    def _begin(self) -> Future[None]:
        if self._running is not None:
            self._running.result()
        written, self._waiting = self._waiting, []
        self._running = self._pool.submit(self._note, written)
        if not self._in_background:
            self._running.result()
        return self._running

    def _note(self, written: list[Written]) -> None:
        if written:
            self._files.sync(dict.fromkeys(tensor.file for tensor in written))
            self._journal.append(written)


@contextmanager
def opened_journal(
    plan: ReshardPlan, part: Path, storage: Storage, outcome: Outcome
) -> Iterator[tuple[Journal, Mapping[TargetTensor, Written]]]:
    """Opens an earlier session's journal of the same reshard, or a new one; yields it and its entries."""
    path = part / JOURNAL_NAME
    earlier = _earlier(plan, part, outcome)
    noted: dict[TargetTensor, Written] = {}
    if earlier is None:
        remove_tree(part, storage, last=[MARKER_NAME, JOURNAL_NAME], keep=True)
    else:
        _refuse_links(part)
        ours = {Path(name).name for name in (*plan.layouts, *plan.other_files)}
        ours |= {DIGESTS_NAME, JOURNAL_NAME, MARKER_NAME}
        for folder in {part, *((part / name).parent for name in plan.layouts)}:
            if folder.is_dir():
                remove_leftovers(folder, storage, ours.__contains__)
        wanted = {(name, tensor) for name, layout in plan.layouts.items() for tensor in layout.extents}
        entries = {(tensor.file, tensor.tensor): tensor for tensor in earlier.written}
        noted = {key: tensor for key, tensor in entries.items() if key in wanted}
    with Journal(path, storage, earlier, {"identity": plan.identity, "settings": plan.settings}) as journal:
        yield journal, noted


def verified(
    part: Path, noted: Mapping[TargetTensor, Written], progress: Progress
) -> dict[TargetTensor, str]:
    """Reads the noted tensors, in threads, and returns the digests of those that match the journal."""
    known: dict[TargetTensor, str] = {}
    done, total = 0, sum(tensor.nbytes for tensor in noted.values())
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
                    entry = noted[name, tensor]
                    if digest == entry.digest:
                        known[name, tensor] = digest
                    done += entry.nbytes
                    progress("checking existing tensors", done, total)
    return known


def _refuse_links(part: Path) -> None:
    """Raises ConfigError for links, which a reshard never makes: it would write elsewhere through them."""
    links = sorted(name for name in names_below(part) if (part / name).is_symlink())
    if links:
        raise ConfigError(
            f"{part}: holds the symbolic link {links[0]}, which reshard did not make; move it away"
        )


def _earlier(plan: ReshardPlan, part: Path, outcome: Outcome) -> JournalContent | None:
    if not is_ours(part):
        raise ConfigError(f"{part}: is not of a reshard; must be, or must not exist")
    path = part / JOURNAL_NAME
    earlier = read_journal(path) if path.exists() else None
    if earlier is None or earlier.head.get("identity") == plan.identity:
        return earlier
    settings = earlier.head.get("settings")
    changed = changed_settings(settings if isinstance(settings, dict) else {}, plan.settings)
    outcome.notes.append(f"{part}: was begun as another reshard ({changed}); begun anew")
    return None
