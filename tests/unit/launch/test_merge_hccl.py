"""tools/merge_hccl.py as MindFormers' users run it: a process of its own, with nothing installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rank_tables import Document, plain_table, write_json

TOOL = Path(__file__).resolve().parents[3] / "tools/merge_hccl.py"


def merge(here: Path, *files: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-S", str(TOOL), *files]
    return subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)


def single(number: int, num_devices: int = 8) -> Document:
    """The table that server `number` writes of itself."""
    table = plain_table(number + 1, num_devices)
    server = table["server_list"][number]
    for place, device in enumerate(server["device"]):
        device["rank_id"] = str(place)
    return {**table, "server_count": "1", "server_list": [server]}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for number in range(3):
        write_json(tmp_path / f"{number}.json", single(number))
    return tmp_path


def test_the_merged_table_byte_for_byte(here: Path) -> None:
    done = merge(here, "0.json", "1.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert (here / "hccl_2s_16p.json").read_text() == json.dumps(plain_table(2), indent=4)
    assert done.stdout.splitlines()[-1] == f"Completed: the rank table is in: {here}/hccl_2s_16p.json"


def test_the_order_of_the_arguments_is_that_of_the_ranks(here: Path) -> None:
    assert merge(here, "2.json", "0.json", "1.json").returncode == 0
    servers = json.loads((here / "hccl_3s_24p.json").read_text())["server_list"]
    first_ranks = [(server["server_id"], server["device"][0]["rank_id"]) for server in servers]
    assert first_ranks == [("10.0.0.3", "0"), ("10.0.0.1", "8"), ("10.0.0.2", "16")]


def test_merged_tables_can_be_merged_and_keep_unknown_keys(here: Path) -> None:
    third = single(2)
    third["server_list"][0]["container_ip"] = "172.17.0.2"
    write_json(here / "2.json", third)
    merge(here, "0.json", "1.json")
    done = merge(here, "hccl_2s_16p.json", "2.json")
    expected = plain_table(3)
    expected["server_list"][2]["container_ip"] = "172.17.0.2"
    assert json.loads((here / "hccl_3s_24p.json").read_text()) == expected
    assert (
        done.stderr
        == "merge_hccl.py: 2.json: server_list[0].container_ip: a key that HCCL does not document\n"
    )


def test_the_same_server_twice_is_refused(here: Path) -> None:
    merge(here, "0.json", "1.json")
    done = merge(here, "0.json", "1.json", "hccl_2s_16p.json")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        'merge_hccl.py: hccl_2s_16p.json: server "10.0.0.1": is in 0.json, too',
        'merge_hccl.py: hccl_2s_16p.json: server "10.0.0.2": is in 1.json, too',
    ]
    assert "hccl_4s_32p.json" not in os.listdir(here)


def test_servers_of_different_sizes_merge_as_ever_and_it_is_said(here: Path) -> None:
    write_json(here / "1.json", single(1, 4))
    done = merge(here, "0.json", "1.json")
    assert done.returncode == 0
    assert done.stderr == 'merge_hccl.py: server_list[1].device: 4 devices, and 8 on server "10.0.0.1"\n'
    assert (here / "hccl_2s_12p.json").is_file()


def test_faulty_files_are_named_with_all_their_faults(here: Path) -> None:
    broken = single(1)
    broken["server_list"][0]["device"][0]["rank_id"] = 0
    write_json(here / "1.json", broken)
    (here / "2.json").write_text("{")
    done = merge(here, "0.json", "1.json", "2.json", "3.json")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["1.json", "2.json", "3.json"]
    assert all(line.isprintable() for line in lines)
    assert "Traceback" not in done.stderr
    assert merge(here).returncode == 2
