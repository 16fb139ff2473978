"""The keys of `launch`: what they cannot be, alone, together and beside the numbers of ranks."""

from pathlib import Path

import pytest

from mindbatch.config.compose import compose_task
from mindbatch.config.launch_schema import LaunchConfig, is_host, launch_errors, resolve_launch_paths
from mindbatch.config.model_schema import ParallelConfig
from mindbatch.io.errors import ConfigError
from mindbatch.io.installation import missing
from mindbatch.tasks.registry import TASKS
from task_configs import config_of

FOUR = ParallelConfig(data_parallel=2, model_parallel=2)
HAVE_RAY = "mindbatch.io.installation.find_spec"
TWO_NODES = {"local_worker_num": 2, "master_addr": "10.0.0.1", "master_port": 8118}


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        ({}, None),
        ({"worker_num": 4}, None),
        ({"local_worker_num": 4}, None),
        (TWO_NODES, None),
        (TWO_NODES | {"node_rank": 1}, None),
        ({"launcher": "srun", "local_worker_num": 2}, None),
        ({"launcher": "rank_table", "rank_table": "table.json"}, None),
        (
            {"worker_num": 8},
            "launch.worker_num=8: parallel.data_parallel=2 x parallel.model_parallel=2 x "
            "parallel.pipeline_stage=1 make 4 processes; set these to what is meant, or remove "
            "launch.worker_num",
        ),
        (
            {"local_worker_num": 3},
            "launch.local_worker_num=3: 4 processes cannot be divided into nodes of 3; allowed: 1, 2, 4",
        ),
        (
            {"local_worker_num": 8},
            "launch.local_worker_num=8: 4 processes cannot be divided into nodes of 8; allowed: 1, 2, 4",
        ),
        (
            TWO_NODES | {"node_rank": 2},
            "launch.node_rank=2: 4 processes, 2 on each node, are on 2 nodes; allowed: 0 to 1",
        ),
        (
            {"local_worker_num": 4, "node_rank": 1},
            "launch.node_rank=1: 4 processes, 4 on each node, are on 1 node; allowed: 0",
        ),
        (
            TWO_NODES | {"master_addr": None},
            "launch.master_addr: must be given where there are 2 nodes, the same on each of them",
        ),
        (
            TWO_NODES | {"master_port": None},
            "launch.master_port: must be given where there are 2 nodes, the same on each of them",
        ),
        (
            {"master_addr": "a;reboot"},
            "launch.master_addr=a;reboot: must be a host name or an IP address",
        ),
        ({"launcher": "ray"}, None),
        ({"launcher": "ray", "ray_address": "head:6379"}, None),
        ({"launcher": "ray", "ray_address": "auto"}, None),
        (
            {"launcher": "ray", "ray_address": "ray://head:10001"},
            "launch.ray_address=ray://head:10001: must be host:port of the cluster's head, as ray start "
            "prints it, or auto",
        ),
        ({"master_port": 65536}, "launch.master_port=65536: must be from 1 to 65535"),
        (
            {"launcher": "rank_table"},
            "launch.rank_table: must be given with launch=rank_table: the JSON file of mindbatch rank-table "
            "or hccl_tools.py",
        ),
    ],
)
def test_each_fault_is_named(
    launch: dict[str, object], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HAVE_RAY, lambda name: name)
    assert [*launch_errors(LaunchConfig(**launch), FOUR)] == ([expected] if expected else [])  # type: ignore[arg-type]


def test_ray_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HAVE_RAY, lambda name: None)
    [fault] = launch_errors(LaunchConfig("ray"), FOUR)
    assert fault == f"launch=ray: {missing('ray')}"


def test_messages_name_what_the_user_of_a_script_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINDBATCH_USER_KEYS", "worker_num=RANK_SIZE,rank_table=RANK_TABLE")
    [fault] = launch_errors(LaunchConfig(worker_num=2, master_port=1), ParallelConfig())
    assert fault == (
        "RANK_SIZE=2: parallel.data_parallel=1 x parallel.model_parallel=1 x "
        "parallel.pipeline_stage=1 make 1 process; set these to what is meant, or give another RANK_SIZE"
    )


def test_all_faults_are_told_at_once() -> None:
    launch = LaunchConfig("rank_table", local_worker_num=3, master_addr="$(id)", master_port=70000)
    assert [fault.partition(":")[0].partition("=")[0] for fault in launch_errors(launch, FOUR)] == [
        "launch.local_worker_num",
        "launch.master_addr",
        "launch.master_port",
        "launch.rank_table",
    ]


@pytest.mark.parametrize("host", ["node-1", "a.b.example", "10.0.0.1", "::1", "fe80::1", "node_7"])
def test_names_and_addresses_of_machines(host: str) -> None:
    assert is_host(host)


@pytest.mark.parametrize(
    "text", ["", "-x", "a b", "a\n", "a;b", "$(id)", "fe80::1%;id", "a" * 254, "x'", "ü"]
)
def test_what_no_machine_is_called(text: str) -> None:
    assert not is_host(text)


def test_paths_are_settled_with_their_faults(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    launch = LaunchConfig(rank_table=f"{tmp_path}/none.json", log_dir=f"{tmp_path}/file")
    faults: list[str] = []
    resolve_launch_paths(launch, faults)
    assert faults == [
        f"launch.rank_table={tmp_path}/none.json: no such file",
        f"launch.log_dir={tmp_path}/file: is a file; give a folder",
    ]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("task", ["generate", "batch", "compare", "plan", "retry", "replay"])
def test_a_launcher_is_chosen_beside_its_keys(task: str) -> None:
    if task in ("retry", "replay"):
        with pytest.raises(ConfigError, match="output.dir"):
            compose_task(TASKS[task], ["launch=srun"])
        return
    settings = compose_task(TASKS[task], ["launch=srun", "launch.worker_num=4"]).settings
    assert settings["launch.launcher"].value == "srun"
    assert settings["launch.worker_num"].value == 4


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "launch=slurm",
            "launch=slurm: no such option; there are dynamic, rank_table, ray, srun",
        ),
        (
            "launch=mpirun",
            "launch=mpirun: was removed; try: launch=dynamic, or mpirun -n NUMBER mindbatch ...",
        ),
        ("launch.worker_num=0", "launch.worker_num=0: must be a whole number, at least 1"),
        ("launch.node_rank=-1", "launch.node_rank=-1: must be a whole number, at least 0"),
        ("launch.workers=2", "launch.workers: unknown key; did you mean launch.worker_num?"),
        ("launch.hang_seconds=0", "launch.hang_seconds=0: must be a whole number, at least 1"),
        ("launch.dry_run=2", "launch.dry_run=2: must be true or false"),
    ],
)
def test_faults_of_single_keys(override: str, expected: str, model_folder: Path) -> None:
    given = [f"model.checkpoint_name_or_path={model_folder}", "prompts=Hi", override]
    with pytest.raises(ConfigError) as caught:
        config_of("generate", *given)
    assert caught.value.lines[0].startswith(expected)
