"""Rank tables as files: the names that MindFormers' tools give them, and writing."""

import os
from collections.abc import Sequence
from pathlib import Path

from mindbatch.launch.rank_table import RankTable
from mindbatch.regular_file import first_bytes
from mindbatch.storage import StorageError, write_whole


def name_for_server(numbers: Sequence[int], server_id: str) -> str:
    """`hccl_4p_0123_10.0.0.1.json`: the logical numbers of the devices, one after another.

    A list too long for a name has its ends: `hccl_96p_0-95_10.0.0.1.json`.
    """
    ids = "".join(map(str, numbers))
    name = f"hccl_{len(numbers)}p_{ids}_{server_id}.json"
    if len(name) <= os.pathconf("/", "PC_NAME_MAX") - 20:  # a file being written has a longer name
        return name
    return f"hccl_{len(numbers)}p_{min(numbers)}-{max(numbers)}_{server_id}.json"


def name_for_servers(table: RankTable) -> str:
    """`hccl_2s_16p.json`."""
    return f"hccl_{len(table.servers)}s_{table.num_ranks}p.json"


def write_table(table: RankTable, path: Path, replace: bool = True) -> bool:
    """Writes the table whole; False when the file held the very same.

    With `replace` false a file that holds something else raises FileExistsError. Raises StorageError.
    """
    data = table.to_bytes()
    try:
        if path.is_file():
            if first_bytes(path, len(data) + 1) == data:
                return False
            if not replace:
                raise FileExistsError
    except PermissionError as error:
        raise StorageError.reading(path, error) from error
    write_whole(path, data)
    return True
