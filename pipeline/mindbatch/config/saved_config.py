"""Writing of a task's configuration beside its outputs."""

from pathlib import Path

from mindbatch.config.schema import TaskConfig
from mindbatch.storage import Storage, write_whole


def save_config(config: TaskConfig, path: Path, storage: Storage | None = None) -> None:
    """Writes `config` to `path` as YAML, whole or not at all; ${...} stay as written, so no secret is kept.

    Raises StorageError when it cannot be written.
    """
    write_whole(path, config.unresolved_yaml.encode(), storage)
