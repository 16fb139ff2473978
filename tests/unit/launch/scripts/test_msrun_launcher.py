"""msrun_launcher.sh: what its 1, 2, 6 or 9 arguments and its variables ask for, and every fault in them."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mindbatch.io.errors import ConfigError
from mindbatch.launch.scripts.msrun_launcher import read_job
from mindbatch.launch.scripts.program_ranks import ProgramRanks, ScriptJob


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def comm() -> str:
    return Path("/proc/self/comm").read_text().strip()


def job_of(*arguments: object, **environment: str) -> ScriptJob:
    return read_job([str(argument) for argument in arguments], environment)


def ranks_of(*arguments: object, **environment: str) -> ProgramRanks:
    ranks = job_of(*arguments, **environment).ranks
    assert ranks is not None
    return ranks


def refused(*arguments: object, **environment: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        job_of(*arguments, **environment)
    return [*caught.value.lines]


def test_two_arguments_start_workers_and_their_scheduler(here: Path) -> None:
    job = ranks_of("ls -x", 2)
    assert job.words == ("ls", "-x")
    assert job.logs == here / "output/msrun_log"
    assert job.shown is False
    assert job.helper is not None
    name, scheduler = job.helper
    common = {
        "RANK_SIZE": "2",
        "MS_WORKER_NUM": "2",
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": scheduler["MS_SCHED_PORT"],
        "MS_TOPO_TIMEOUT": "7200",
        "LOG_MF_PATH": str(here / "output/log"),
    }
    assert (name, scheduler) == ("scheduler", {**common, "MS_ROLE": "MS_SCHED", "RANK_ID": "0"})
    assert job.ranks == {
        f"worker_{rank}": {
            **common,
            "MS_ROLE": "MS_WORKER",
            "MS_NODE_ID": rank,
            "RANK_ID": rank,
            "DEVICE_ID": rank,
        }
        for rank in ("0", "1")
    }


def test_one_argument_starts_eight_and_one_worker_needs_no_cluster(here: Path) -> None:
    eight, job = job_of("ls").ranks, job_of("ls", 1).ranks
    assert eight is not None
    assert job is not None
    assert (len(eight.ranks), job.helper) == (8, None)
    logs = {"LOG_MF_PATH": str(here / "output/log")}
    assert job.ranks == {"worker_0": {**logs, "RANK_SIZE": "1", "RANK_ID": "0", "DEVICE_ID": "0"}}


def test_six_arguments(here: Path, free: int) -> None:
    job = ranks_of("ls", 2, free, "my logs", "True", 60)
    assert (job.logs, job.shown) == (here / "my logs", True)
    assert job.ranks["worker_1"]["MS_SCHED_PORT"] == str(free)
    assert job.ranks["worker_1"]["MS_TOPO_TIMEOUT"] == "60"


def test_nine_arguments_of_another_node() -> None:
    job = ranks_of("ls", 4, 2, "10.0.0.1", 8118, 1, "logs", "False", 60)
    assert job.helper is None
    assert [*job.ranks] == ["worker_2", "worker_3"]
    worker = job.ranks["worker_3"]
    assert {name: worker[name] for name in ("RANK_ID", "MS_NODE_ID", "DEVICE_ID", "RANK_SIZE")} == {
        "RANK_ID": "3",
        "MS_NODE_ID": "3",
        "DEVICE_ID": "1",
        "RANK_SIZE": "4",
    }
    assert worker["MS_SCHED_HOST"] == "10.0.0.1"


def test_the_variables_of_logs(here: Path) -> None:
    suffix = {"MF_LOG_SUFFIX": "run 7", "PLOG_REDIRECT_TO_OUTPUT": "True"}
    job = ranks_of("ls", 1, **suffix)
    assert job.logs == here / "output/msrun_log_run 7"
    assert job.ranks["worker_0"]["LOG_MF_PATH"] == str(here / "output/log_run 7")
    assert job.ranks["worker_0"]["ASCEND_PROCESS_LOG_PATH"] == str(here / "output/plog_run 7")
    job = ranks_of("ls", 1, LOG_MF_PATH="/var/mf", **suffix)
    assert job.ranks["worker_0"]["LOG_MF_PATH"] == "/var/mf_run 7"


def test_mindbatch_is_run_once_and_told_of_the_job(here: Path) -> None:
    job = job_of("mindbatch generate", 4, 2, "10.0.0.1", 8118, 1, "logs", "False", 60)
    assert job.ranks is None
    assert job.order.arguments == (
        "launch.worker_num=4",
        f'launch.log_dir="{here}/logs"',
        "launch.local_worker_num=2",
        'launch.master_addr="10.0.0.1"',
        "launch.master_port=8118",
        "launch.node_rank=1",
        "generate",
    )
    assert job.variables["LOG_MF_PATH"] == str(here / "output/log")


def test_mindbatch_on_one_machine_chooses_its_port() -> None:
    first, second, third = job_of("mindbatch generate", 2).order.arguments
    assert (first, third) == ("launch.worker_num=2", "generate")
    assert second.startswith("launch.log_dir=")


@pytest.mark.parametrize(
    ("arguments", "faults"),
    [
        (("ls", "x"), ["WORKER_NUM 'x': must be a whole number from 1 to 65536"]),
        (("ls", "0"), ["WORKER_NUM '0': must be a whole number from 1 to 65536"]),
        (
            ("ls", 2, 99999, "", "maybe", "-1"),
            [
                "MASTER_PORT '99999': must be a whole number from 1 to 65535",
                "CLUSTER_TIME_OUT '-1': must be a whole number from 1 to 2147483648",
                "JOIN 'maybe': must be True or False",
                "LOG_DIR '': must be the path of a folder",
            ],
        ),
        (
            ("ls", 5, 2, "10.0.0.1", 8118, 0, "logs", "False", 60),
            ["LOCAL_WORKER 2: 5 workers cannot be dealt to nodes of 2"],
        ),
        (
            ("ls", 4, 2, "10.0.0.1", 8118, 2, "logs", "False", 60),
            ["NODE_RANK 2: 4 workers, 2 on each node, are on 2; 0 is the first"],
        ),
        (
            ("ls", 4, 2, "10.0.0.1", 8118, 0, "logs", "False", 60),
            ["MASTER_ADDR '10.0.0.1': not this machine, which NODE_RANK 0 is"],
        ),
        (
            ("ls", 4, 2, "10.0.0.1; reboot", 8118, 0, "logs", "False", 60),
            ["MASTER_ADDR '10.0.0.1; reboot': not this machine, which NODE_RANK 0 is"],
        ),
    ],
)
def test_arguments_that_cannot_be_right_are_refused(arguments: tuple[object, ...], faults: list[str]) -> None:
    assert refused(*arguments) == faults


def test_variables_that_cannot_be_right_are_refused() -> None:
    assert refused("nosuch", 1, MF_LOG_SUFFIX="/../x", PLOG_REDIRECT_TO_OUTPUT="perhaps") == [
        "MF_LOG_SUFFIX='/../x': must be the end of a folder's name",
        "PLOG_REDIRECT_TO_OUTPUT='perhaps': must be True or False",
        "EXECUTE_ORDER 'nosuch': 'nosuch' is no program",
    ]


def test_a_port_that_is_taken_is_refused_where_it_was_given(taken: int) -> None:
    assert refused("ls", 2, taken, "logs", "False", 60) == [
        f"MASTER_PORT {taken}: process {os.getpid()} ({comm()}) listens on this port already; use another one"
    ]


def test_another_port_is_found_where_none_was_given(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(read_job.__globals__["DEFAULTS"], "MASTER_PORT", str(taken))
    job = job_of("ls", 2)
    assert job.notes == (
        f"port {taken}: process {os.getpid()} ({comm()}) listens on this port already; another is taken",
    )
    assert job.ranks is not None
    assert job.ranks.drawn_port is not None
    with closing(job.ranks.drawn_port) as drawn:
        assert job.ranks.ranks["worker_0"]["MS_SCHED_PORT"] == str(drawn.number)
        assert taken != drawn.number
