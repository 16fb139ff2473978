"""Every launcher for real: each rank is told who it is, ends are noticed, and nothing is left."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ended_processes import runs, wait_for
from mindbatch.config.launch_schema import LaunchConfig
from mindbatch.io.children import command
from mindbatch.launch.job_ranks import EndedRank
from mindbatch.launch.preflight import set_up
from mindbatch.launch.rank_table import Device, RankTable, Server
from mindbatch.launch.table_reader import read_rank_table
from mindbatch.parallel.topology import Topology
from mindbatch.replicas.start import local_processes, start_ranks
from processes import told_rank

pytestmark = [pytest.mark.slow, pytest.mark.processes]

FOUR = Topology(2, 2)
STRANGE = "-a b;$(touch hacked)`touch hacked`'\"\\ \n&|*"
"""A name that a shell would make much of."""


class Job:
    """Ranks of `told_rank`, started by a launcher; `told` waits for what one has written down."""

    def __init__(self, launcher: str, folder: Path) -> None:
        self.folder = folder / STRANGE
        self.logs = self.folder / "logs"
        self.logs.mkdir(parents=True)
        self.setup = set_up(self._launch(launcher), FOUR, {})
        told = command(told_rank.main, str(self.folder))
        commands = {"rank": told, "scheduler": told}
        local = local_processes(self.setup, self.logs, commands=commands)
        self.links, self.ranks = start_ranks(self.setup, local)

    def told(self, name: str) -> dict[str, Any]:
        path = self.folder / f"{name}.json"
        wait_for(path.exists)
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def pids(self) -> list[int]:
        return [json.loads(path.read_text())["pid"] for path in self.folder.glob("*.json")]

    def _launch(self, launcher: str) -> LaunchConfig:
        if launcher != "rank_table":
            return LaunchConfig(launcher)
        devices = tuple(Device(7 - number, device_ip=f"10.1.0.{number}") for number in range(4))
        table = self.folder / "table"
        table.write_bytes(RankTable.numbered("1.0", [Server("10.0.0.1", devices)]).to_bytes())
        return LaunchConfig(launcher, rank_table=str(table))


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture(scope="module", params=["dynamic", "rank_table"])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    started = Job(request.param, tmp_path_factory.mktemp(request.param))
    for rank in range(4):
        started.told(f"{rank}_0")
    yield started
    started.ranks.end()
    started.links.close()
    assert not [pid for pid in started.pids() if runs(pid)]


def test_nothing_of_a_job_on_one_host_is_reached_from_another(job: Job) -> None:
    """Neither what starts the ranks nor the ranks: at an address of this host nobody listens."""
    if shutil.which("ss") is None:
        pytest.skip("no ss here")
    pids = set(job.pids())
    pids |= {parent_of(pid) for pid in pids}
    listed = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
    addresses = {
        line.split()[3].rpartition(":")[0]
        for line in listed.splitlines()
        if {int(found) for found in re.findall(r"pid=(\d+)", line)} & pids
    }
    assert addresses <= {"127.0.0.1", "[::1]", "0.0.0.0%lo", "[::]%lo", "*%lo"}


def test_each_rank_is_told_who_it_is(job: Job) -> None:
    for rank in range(4):
        told = job.told(f"{rank}_0")["variables"]
        assert told["MINDBATCH_COORDINATOR"] == "{}:{}".format(*job.links.address)
        assert told["MINDBATCH_JOB_KEY"] == job.setup.key.hex()
        assert (told["RANK_ID"], told["RANK_SIZE"]) == (str(rank % 2), "2")
        assert (told["MS_ROLE"], told["MS_WORKER_NUM"], told["MS_NODE_ID"]) == (
            "MS_WORKER",
            "2",
            str(rank % 2),
        )
        assert told["DEVICE_ID"] == str(7 - rank if job.setup.table is not None else rank)
        assert not [name for name in told if name.startswith(("OMPI_", "PMIX_"))]
    ports = [job.told(f"{rank}_0")["variables"]["MS_SCHED_PORT"] for rank in range(4)]
    assert ports[0] == ports[1] != ports[2] == ports[3]
    assert job.told(f"scheduler_{ports[0]}")["variables"]["MS_ROLE"] == "MS_SCHED"


def test_each_replica_has_a_rank_table_of_its_own(job: Job) -> None:
    files = [job.told(f"{rank}_0")["variables"].get("RANK_TABLE_FILE") for rank in range(4)]
    if job.setup.table is None:
        assert files == [None] * 4
        return
    assert files[0] == files[1] != files[2] == files[3]
    table, _ = read_rank_table(Path(str(files[2])))
    devices = [(each.rank_id, each.device_id) for server in table.servers for each in server.devices]
    assert devices == [(0, 5), (1, 4)]


def test_nothing_took_a_name_for_a_command(job: Job) -> None:
    assert not [*job.folder.parent.rglob("hacked")]
    assert not Path("hacked").exists()
    assert {f"rank_{rank}.log" for rank in range(4)} <= {path.name for path in job.logs.iterdir()}
    assert (job.logs / "rank_3.log").read_text() == "3_0 has begun\n"


def test_a_killed_rank_is_known_soon_and_its_replica_starts_anew(job: Job) -> None:
    found: list[EndedRank] = []
    os.kill(job.told("3_0")["pid"], signal.SIGKILL)
    wait_for(lambda: found.extend(job.ranks.ended()) or found, seconds=5)
    assert found == [EndedRank(3, "signal 9", ("3_0 has begun",))]
    other = job.told("0_0")["pid"]
    left = job.told("2_0")["pid"]
    job.ranks.restart(1, 1)
    assert not runs(left)
    assert job.told("3_1")["variables"]["MINDBATCH_ATTEMPT"] == "1"
    assert job.told("2_1")["variables"]["MS_SCHED_PORT"] == job.told("3_1")["variables"]["MS_SCHED_PORT"]
    assert job.told("2_1")["variables"]["MS_SCHED_PORT"] != job.told("2_0")["variables"]["MS_SCHED_PORT"]
    assert runs(other)
    assert job.ranks.ended() == []


def test_a_command_that_is_killed_takes_everything_along(tmp_path: Path) -> None:
    front = os.fork()
    if front == 0:  # the command
        try:
            kept = Job("dynamic", tmp_path)  # noqa: F841
            signal.pause()
        finally:
            os._exit(1)
    folder = tmp_path / STRANGE
    try:
        wait_for(lambda: len([*folder.glob("*_0.json")]) == 4)
        pids = [json.loads(path.read_text())["pid"] for path in folder.glob("*.json")]
    finally:
        os.kill(front, signal.SIGKILL)
        os.waitpid(front, 0)
    wait_for(lambda: not any(map(runs, pids)), seconds=5)
