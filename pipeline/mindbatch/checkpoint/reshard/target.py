"""The target folder of a reshard before and after: what may be there, and how the new one gets its name."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.folders.reshard_marker import JOURNAL_NAME, MARKER_NAME, read_marker
from mindbatch.checkpoint.reshard.folder import (
    changed_settings,
    locked,
    part_of,
    refuse_foreign,
    remove_tree,
)
from mindbatch.checkpoint.reshard.order import Order
from mindbatch.errors import CheckpointError, ConfigError
from mindbatch.storage import Storage, StorageError


def is_there(order: Order) -> bool:
    """Whether the target folder is what is wanted. ConfigError when it is something that must not go."""
    target = order.target
    if not os.path.lexists(target) or (target.is_dir() and not os.listdir(target)):
        return False
    marker = read_marker(target) if target.is_dir() else None
    if marker is None:
        raise ConfigError(f"target.dir={target}: exists and was not written by reshard; give another folder")
    gone = marker.changed(target) if marker.identity == order.identity else []
    if marker.identity == order.identity and not gone:
        return True
    if gone and not order.replace:
        raise ConfigError(
            f"target.dir={target}: is this reshard, but {shown(gone[0])} is missing or not of the size that "
            f"{MARKER_NAME} says; remove the folder, or give target.replace=true"
        )
    if not order.replace:
        changed = changed_settings(marker.settings, order.settings)
        raise ConfigError(
            f"target.dir={target}: holds another reshard ({changed}); give another folder, or "
            "target.replace=true"
        )
    refuse_foreign(target, marker)
    return False


def is_complete(order: Order, part: Path) -> bool:
    """Whether an earlier session was killed just before the rename."""
    marker = None if (part / JOURNAL_NAME).exists() else read_marker(part)
    return marker is not None and marker.identity == order.identity and not marker.changed(part)


def refuse_source_in(part: Path, order: Order) -> None:
    """ConfigError when what is read is in the folder that is written, which is emptied first."""
    for path in sorted(order.sources):
        if Path(path).resolve().is_relative_to(part):
            raise ConfigError(f"{path}: is in {part}, where the target is made; move the source away")


def keep_name(order: Order, storage: Storage) -> None:
    """Makes the name of a finished target durable, which a killed process may not have done.

    Comes before anything beside it is removed: a power cut might bring that back as the target.
    """
    try:
        storage.sync_folder(order.target.parent)
    except OSError as error:
        raise StorageError.writing(order.target, error) from error


def refuse_changed(order: Order) -> None:
    """CheckpointError when files of the source, of which no digests tell, are not as they were."""
    faults = []
    for path, stamp in order.stamps.items():
        status = path.stat() if path.exists() else None
        if status is None or (status.st_size, status.st_mtime_ns) != stamp:
            faults.append(f"{path}: was changed while it was read; the same command begins anew")
    raise_if_any(faults)


def remove_displaced(order: Order, storage: Storage) -> None:
    """What was in the target folder before it was replaced, if a kill has left that."""
    part = part_of(order.target)
    if not part.is_dir() or (part / JOURNAL_NAME).exists():
        return
    if read_marker(part) is not None or not os.listdir(part):
        with locked(part):
            remove_tree(part, storage, last=[MARKER_NAME])


def give_name(order: Order, part: Path, storage: Storage) -> None:
    """The rename; a reshard that is to give way is exchanged for the new one first, and then removed."""
    target = order.target
    gives_way = order.replace and read_marker(target) is not None
    try:
        storage.sync_folder(part)  # a process that was killed has perhaps just removed the journal
        if gives_way:
            storage.exchange(part, target)
        else:
            storage.replace(part, target)
        storage.sync_folder(target.parent)
    except OSError as error:
        if gives_way and error.errno in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise CheckpointError(
                f"{target}: this file system cannot replace a folder at once; remove it, and the same "
                "command gives the new one its name"
            ) from error
        raise StorageError.writing(target, error) from error
    if gives_way:
        remove_tree(part, storage, last=[MARKER_NAME])
