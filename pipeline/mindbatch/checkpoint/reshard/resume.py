"""Taking up a reshard that was killed: its journal, and whether what that says is still true."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from mindbatch.checkpoint.folders.digests import DIGESTS_NAME, tensor_digest
from mindbatch.checkpoint.folders.reshard_marker import JOURNAL_NAME, MARKER_NAME
from mindbatch.checkpoint.formats.open_file import open_tensor_file
from mindbatch.checkpoint.reshard.folder import changed_settings, is_ours, names_below, remove_tree
from mindbatch.checkpoint.reshard.journal import Journal, JournalContent, read_journal
from mindbatch.checkpoint.reshard.order import Order, Outcome, Place
from mindbatch.checkpoint.reshard.progress import Progress
from mindbatch.checkpoint.reshard.write import Written
from mindbatch.errors import ConfigError
from mindbatch.storage import Storage, remove_leftovers


@contextmanager
def opened_journal(
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
            _refuse_links(part)
            ours = {Path(name).name for name in (*order.layouts, *order.beside)}
            ours |= {DIGESTS_NAME, JOURNAL_NAME, MARKER_NAME}
            for folder in {part, *((part / name).parent for name in order.layouts)}:
                if folder.is_dir():
                    remove_leftovers(folder, storage, ours.__contains__)
            journal.go_on(found)
            held = {(name, tensor) for name, layout in order.layouts.items() for tensor in layout.extents}
            entries = {(each.file, each.tensor): each for each in found.written}
            yield journal, {place: each for place, each in entries.items() if place in held}


def verified(part: Path, noted: Mapping[Place, Written], progress: Progress) -> dict[Place, str]:
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


def _refuse_links(part: Path) -> None:
    """ConfigError: through a link, which a reshard never makes, it would write elsewhere."""
    links = sorted(name for name in names_below(part) if (part / name).is_symlink())
    if links:
        raise ConfigError(
            f"{part}: holds the symbolic link {links[0]}, which reshard did not make; move it away"
        )


def _earlier(order: Order, part: Path, outcome: Outcome) -> JournalContent | None:
    """The journal of an earlier session, if it was of the same reshard."""
    if not is_ours(part):
        raise ConfigError(f"{part}: is not of a reshard; must be, or must not exist")
    path = part / JOURNAL_NAME
    found = read_journal(path) if path.exists() else None
    if found is None or found.head.get("identity") == order.identity:
        return found
    settings = found.head.get("settings")
    changed = changed_settings(settings if isinstance(settings, dict) else {}, order.settings)
    outcome.notes.append(f"{part}: was begun as another reshard ({changed}); begun anew")
    return None
