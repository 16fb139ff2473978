"""Names of rank table files, and writing them."""

import json
import os
from pathlib import Path

import pytest

from mindbatch.io.storage import StorageError
from mindbatch.launch.rank_table import counted, table_rows
from mindbatch.launch.table_files import name_for_server, name_for_servers, write_table
from mindbatch.launch.table_reader import examine
from rank_tables import plain_table, super_pod_table


def test_names_are_those_of_mindformers() -> None:
    assert name_for_server([0, 1, 2, 3], "10.0.0.1") == "hccl_4p_0123_10.0.0.1.json"
    assert name_for_server([*range(8, 12)], "n") == "hccl_4p_891011_n.json"
    assert name_for_servers(examine(plain_table(2))[0]) == "hccl_2s_16p.json"


def test_a_name_fits_into_a_folder(tmp_path: Path) -> None:
    name = name_for_server([*range(1024)], "x" * 64)
    assert name == f"hccl_1024p_0-1023_{'x' * 64}.json"
    longest = max((name_for_server([*range(n)], "x" * 64) for n in range(1, 100)), key=len)
    assert write_table(examine(plain_table())[0], tmp_path / longest)


def test_a_file_is_written_once_and_replaced_only_if_that_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    small, large = (examine(plain_table(1, size))[0] for size in (4, 8))
    assert write_table(small, path, replace=False)
    assert not write_table(small, path, replace=False)
    with pytest.raises(FileExistsError):
        write_table(large, path, replace=False)
    assert json.loads(path.read_bytes()) == plain_table(1, 4)
    assert write_table(large, path)
    assert json.loads(path.read_bytes()) == plain_table(1, 8)
    assert os.listdir(tmp_path) == ["t.json"]
    with pytest.raises(StorageError, match="cannot be written"):
        write_table(small, tmp_path / "no" / "t.json")


def test_a_table_is_shown_in_columns() -> None:
    assert table_rows(examine(plain_table(1, 2))[0]) == [
        "rank  server    device  address",
        "0     10.0.0.1  0       192.168.0.100",
        "1     10.0.0.1  1       192.168.0.101",
    ]
    rows = table_rows(examine(super_pod_table())[0])
    assert rows[0].split() == ["rank", "server", "device", "address", "SDID"]
    assert rows[5].split() == ["4", "node_1", "0", "192.168.1.1", "4"]
    assert counted(examine(plain_table(1, 1))[0]) == "1 rank on 1 server"
    assert counted(examine(plain_table(2))[0]) == "16 ranks on 2 servers"
