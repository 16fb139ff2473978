"""run_dist_gen.sh: what its four arguments ask for, and every fault in them."""

import json
import socket
from pathlib import Path

import pytest

from mindbatch.io.errors import ConfigError
from mindbatch.launch.scripts.dist_gen import read_job
from mindbatch.launch.scripts.program_ranks import ProgramRanks, ScriptJob
from rank_tables import modelarts_table, plain_table, write_json


def write_table(folder: Path, servers: dict[str, list[int]]) -> Path:
    """A table with these devices on each server."""
    table = plain_table(len(servers), len(next(iter(servers.values()))))
    for server, (name, devices) in zip(table["server_list"], servers.items(), strict=True):
        server["server_id"] = name
        for entry, device in zip(server["device"], devices, strict=True):
            entry["device_id"] = str(device)
    return write_json(folder / "table.json", table)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def job_of(order: str, devices: str, size: str, **environment: str) -> ScriptJob:
    return read_job([order, "table.json", devices, size], environment)


def ranks_of(order: str, devices: str, size: str, **environment: str) -> ProgramRanks:
    ranks = job_of(order, devices, size, **environment).ranks
    assert ranks is not None
    return ranks


def refused(order: str, devices: str, size: str, **environment: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        job_of(order, devices, size, **environment)
    return [*caught.value.lines]


def variables(rank: int, device: int, size: int, here: Path) -> dict[str, str]:
    return {
        "RANK_ID": str(rank),
        "DEVICE_ID": str(device),
        "RANK_SIZE": str(size),
        "RANK_TABLE_FILE": str(here / "table.json"),
    }


def test_in_a_container_devices_are_numbered_anew(here: Path) -> None:
    write_table(here, {"10.0.0.1": [4, 5]})
    job = ranks_of("ls", "[0,2)", "2", ASCEND_RT_VISIBLE_DEVICES="4,5")
    assert job.ranks == {"rank_0": variables(0, 0, 2, here), "rank_1": variables(1, 1, 2, here)}


def test_a_program_gets_a_table_of_modelarts_in_the_form_that_hccl_reads(here: Path) -> None:
    (here / "table.json").write_text(json.dumps(modelarts_table(1, 2)))
    job = ranks_of("env run", "[0,2]", "2")
    paths = {each["RANK_TABLE_FILE"] for each in job.ranks.values()}
    assert paths == {str(here / "output/log/rank_table.json")}
    assert json.loads((here / "output/log/rank_table.json").read_text()) == plain_table(1, 2)


def test_mindbatch_is_run_once_and_told_of_the_table(here: Path) -> None:
    write_table(here, {"10.0.0.1": [0, 1]})
    job = job_of("mindbatch generate model=tiny_gpt2", "[0,2]", "2", INPUT_DATA="one, two")
    assert job.ranks is None
    assert job.variables == {"MINDBATCH_USER_KEYS": "worker_num=RANK_SIZE,rank_table=RANK_TABLE"}
    assert job.order.arguments == (
        'launch.launcher="rank_table"',
        f'launch.rank_table="{here}/table.json"',
        "launch.worker_num=2",
        f'launch.log_dir="{here}/output/log"',
        'prompts=["one, two"]',
        "generate",
        "model=tiny_gpt2",
    )


def test_mindbatch_of_several_servers_is_told_which_it_is(here: Path) -> None:
    write_table(here, {"10.0.0.1": [0, 1], socket.gethostname(): [0, 1]})
    arguments = job_of("mindbatch generate", "[0,2]", "4").order.arguments
    assert {"launch.node_rank=1", 'launch.master_addr="10.0.0.1"', "launch.worker_num=4"} <= {*arguments}


ENDS = "the end is exclusive whatever the bracket, as in run_dist_gen.sh: "


@pytest.mark.parametrize(
    ("devices", "size", "faults"),
    [
        ("0-2", "2", ["'0-2': must be a range of devices like [0,8)"]),
        ("[0,2]", "two", ["RANK_SIZE 'two': must be a whole number above 0"]),
        ("[0,2]", "0", ["RANK_SIZE '0': must be a whole number above 0"]),
        (
            "[0,1]",
            "2",
            [f"[0,1]: {ENDS}device 0 alone; write [0,1) for these, [0,2) with device 1"],
        ),
        (
            "[0,1)",
            "2",
            ["[0,1): 1 of the 2 devices that this server has in {table}; the job needs all of them"],
        ),
        ("[0,2]", "4", ["RANK_SIZE 4: {table} has 2 ranks on 1 server"]),
        ("[0,2]", "1", ["[0,2]: 2 devices for RANK_SIZE 1", "RANK_SIZE 1: {table} has 2 ranks on 1 server"]),
        ("[1,3]", "2", ["[1,3]: device 2: not among those of the rank table (0, 1)"]),
    ],
)
def test_numbers_that_do_not_go_together_are_refused(
    here: Path, devices: str, size: str, faults: list[str]
) -> None:
    table = write_table(here, {"10.0.0.1": [0, 1]})
    assert refused("ls", devices, size) == [fault.format(table=table) for fault in faults]


def test_all_faults_are_told_at_once(here: Path) -> None:
    path = write_table(here, {"10.0.0.1": [0, 0]})
    assert refused("nosuch", "[0,2", "x") == [
        "EXECUTE_ORDER 'nosuch': 'nosuch' is no program",
        "RANK_SIZE 'x': must be a whole number above 0",
        "'[0,2': must be a range of devices like [0,8)",
        f'{path}: server_list[0].device[1].device_id: "0" is that of server_list[0].device[0].device_id, too',
    ]


def test_a_machine_that_the_table_does_not_name_is_refused(here: Path) -> None:
    path = write_table(here, {"10.0.0.1": [0], "10.0.0.2": [0]})
    assert refused("ls", "[0,1)", "2") == [
        f"{path}: none of its servers ('10.0.0.1', '10.0.0.2') is this machine, {socket.gethostname()}, by "
        "server_id or host_ip"
    ]
