"""The folder in which the processes of a job leave their logs."""

from __future__ import annotations

import weakref
from pathlib import Path

from mindbatch.io.errors import ConfigError
from mindbatch.io.leftovers import TemporaryFolder
from mindbatch.io.storage import Storage, reason_of, write_whole
from mindbatch.launch.rank_table import RankTable


def made_folder(folder: Path, key: str = "launch.log_dir=") -> Path:
    """A folder of the user's, made if it is not there.

    key: what stands before it in messages. Raises ConfigError where that is not possible.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{key}{folder}: cannot be made ({reason_of(error)})") from error
    return folder.absolute()


def temporary_folder(owner: object) -> Path:
    """A folder that is removed with its owner."""
    folder = TemporaryFolder()
    weakref.finalize(owner, folder.remove)
    return folder.path


def replica_table(logs: Path, replica: int) -> Path:
    """The file with the rank table of one replica, whose ranks are numbered from 0."""
    return logs / f"rank_table_{replica}.json"


def write_replica_tables(table: RankTable, logs: Path, replica_size: int) -> None:
    """Writes the rank table of each replica."""
    for replica in range(table.num_ranks // replica_size):
        ranks = range(replica * replica_size, (replica + 1) * replica_size)
        write_whole(replica_table(logs, replica), table.of_ranks(ranks).to_bytes(), Storage())
