"""Writing of a task's configuration beside its outputs."""

import os
import secrets
from pathlib import Path

from mindbatch.config.schema import TaskConfig


def save_config(config: TaskConfig, path: Path) -> None:
    """Writes `config` to `path` as YAML, whole or not at all; ${...} stay as written, so no secret is kept.

    The file is written beside, synced and renamed. Raises OSError when the folder cannot be written.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with beside.open("x", encoding="utf-8") as file:
            file.write(config.unresolved_yaml)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Makes the rename itself survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
