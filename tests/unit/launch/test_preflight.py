"""What can be refused before a process is started, all at once; where the ranks of a replica meet."""

import json
import socket
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from mindbatch.config.launch_schema import LaunchConfig
from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.io import installation
from mindbatch.io.errors import ConfigError
from mindbatch.io.installation import missing
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.launch import preflight
from mindbatch.launch.preflight import joins_mpi, needs_world, refuse_apart, set_up, shares_memory
from mindbatch.launch.process_plan import JobSetup
from mindbatch.launch.rank_table import Device, RankTable, Server
from mindbatch.parallel.topology import Topology

FOUR = Topology(2, 2)
KEY = {"MINDBATCH_JOB_KEY": "ab" * 32}
TWO_NODES = {"local_worker_num": 2, "master_addr": "127.0.0.1"}


def faults(launch: LaunchConfig, environment: dict[str, str] = KEY, topology: Topology = FOUR) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        set_up(launch, topology, environment)
    return [*caught.value.lines]


def table_of(tmp_path: Path, *sizes: int, reverse: bool = False) -> str:
    """A rank table with so many devices on each server."""
    servers = [
        Server(f"10.0.0.{n}", tuple(Device(device, device_ip=f"10.1.{n}.{device}") for device in range(size)))
        for n, size in enumerate(sizes)
    ]
    if reverse:
        servers[0] = Server(
            "10.0.0.0", tuple(Device(7 - n, device_ip=f"10.1.0.{n}") for n in range(sizes[0]))
        )
    path = tmp_path / "table.json"
    path.write_bytes(RankTable.numbered("1.0", servers).to_bytes())
    return str(path)


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "MINDBATCH_JOB_KEY is not set"),
        ({"MINDBATCH_JOB_KEY": "secret"}, "MINDBATCH_JOB_KEY is not a key"),
    ],
)
def test_nodes_need_a_common_key(environment: dict[str, str], expected: str, free_port: int) -> None:
    [fault] = faults(LaunchConfig(**TWO_NODES, master_port=free_port), environment)
    assert fault.startswith(f"{expected}: the nodes of a job know each other by 64 hexadecimal digits")
    assert "secret" not in fault


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        (
            {"local_worker_num": 1, "master_addr": "a"},
            "launch.master_port: must be given where there are 4 nodes, the same on each of them",
        ),
        (
            {**TWO_NODES, "master_port": 7000, "node_rank": 2},
            "launch.node_rank=2: there are 2 nodes; allowed: 0 to 1",
        ),
        (
            {"node_rank": 1},
            "launch.node_rank=1: all processes are on one node; leave it out, or set launch.local_worker_num "
            "to the processes of each node",
        ),
        (
            {"local_worker_num": 3, "master_addr": "a", "master_port": 7000},
            "launch.local_worker_num=3: a replica has 2 processes; a node must hold whole replicas, or "
            "whole nodes one replica",
        ),
    ],
)
def test_nodes_that_cannot_be(launch: dict[str, object], expected: str) -> None:
    topology = Topology(3, 2) if launch.get("local_worker_num") == 3 else FOUR
    assert faults(LaunchConfig(**launch), topology=topology) == [expected]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("launch", "variables", "named"),
    [
        (
            {"master_addr": "192.0.2.1", "master_port": 7000},
            {},
            "launch.master_addr={}, launch.master_port={}",
        ),
        (
            {},
            {
                "MS_ROLE": "MS_WORKER",
                "MS_SCHED_HOST": "192.0.2.1",
                "MS_SCHED_PORT": "7000",
                "MS_WORKER_NUM": "2",
                "RANK_ID": "0",
            },
            "MS_SCHED_HOST={}, MS_SCHED_PORT={}",
        ),
    ],
)
def test_an_address_of_another_machine_is_named_by_who_gave_it(
    launch: dict[str, object], variables: dict[str, str], named: str
) -> None:
    [fault] = faults(LaunchConfig(local_worker_num=2, **launch), KEY | variables)  # type: ignore[arg-type]
    assert fault.startswith(f"{named.format('192.0.2.1', 7000)}: cannot be listened on (")


class TestRankTables:
    def setup_of(self, path: str, **launch: object) -> JobSetup:
        return set_up(LaunchConfig("rank_table", rank_table=path, **launch), FOUR, KEY)  # type: ignore[arg-type]

    def test_devices_are_those_of_the_table_and_another_one_has_another_digest(self, tmp_path: Path) -> None:
        first, same = (self.setup_of(table_of(tmp_path, 4)) for _ in range(2))
        other = self.setup_of(table_of(tmp_path, 4, reverse=True))
        assert [other.device_of(rank) for rank in range(4)] == [7, 6, 5, 4]
        assert first.table_digest == same.table_digest != other.table_digest != ""

    def test_nodes_are_the_servers_of_the_table(self, tmp_path: Path) -> None:
        assert [*self.setup_of(table_of(tmp_path, 2, 2), **NODES).ranks] == [2, 3]

    @pytest.mark.parametrize("sizes", [(2,), (4, 4), (8,)])
    def test_other_ranks_than_the_topology(self, sizes: tuple[int, ...], tmp_path: Path) -> None:
        path = table_of(tmp_path, *sizes)
        [fault] = faults(LaunchConfig("rank_table", rank_table=path))
        servers = f"{len(sizes)} server{'s' * (len(sizes) > 1)}"
        assert fault == (
            f"launch.rank_table={path}: holds {sum(sizes)} ranks on {servers}, and parallel.data_parallel=2 "
            "x parallel.model_parallel=2 x parallel.pipeline_stage=1 make 4; use a table of those, or other "
            "numbers"
        )

    def test_the_nodes_are_not_the_servers(self, tmp_path: Path, free_port: int) -> None:
        path = table_of(tmp_path, 4)
        [fault] = faults(LaunchConfig("rank_table", rank_table=path, **TWO_NODES, master_port=free_port))  # type: ignore[arg-type]
        assert fault == "launch.rank_table: 1 servers with 4 devices, and 2 nodes with 2 processes each"

    def test_every_fault_of_the_table_itself(self, tmp_path: Path) -> None:
        path = table_of(tmp_path, 4)
        content = json.loads(Path(path).read_text())
        content["server_list"][0]["device"][1]["rank_id"] = "0"
        content["server_list"][0]["device"][2]["device_ip"] = "10.1.0.0"
        content["status"] = "begun"
        Path(path).write_text(json.dumps(content))
        found = faults(LaunchConfig("rank_table", rank_table=path))
        assert len(found) >= 3
        assert all(fault.startswith(f"{path}: ") for fault in found)


class TestCopies:
    """Where a launcher starts the whole command several times, each copy is a node."""

    SLURM = {
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_PROCID": "1",
        "SLURM_STEP_NODELIST": "node[07-08]",
        "SLURM_JOB_ID": "41",
    }

    def test_slurm_says_who_is_who(self) -> None:
        setup = set_up(LaunchConfig("srun"), FOUR, self.SLURM | KEY)
        assert (setup.node, [*setup.ranks]) == (1, [2, 3])
        assert setup.rendezvous[0] == "node07"
        assert 20_000 <= setup.rendezvous[1] < 30_000
        first = set_up(LaunchConfig("srun"), FOUR, self.SLURM | KEY | {"SLURM_STEP_NODELIST": "localhost"})
        assert first.rendezvous == ("localhost", setup.rendezvous[1])

    def test_copies_on_one_host_have_devices_of_their_own(self) -> None:
        slurm = self.SLURM | {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}
        assert set_up(LaunchConfig("srun"), Topology(4, 2), slurm | KEY).device_offset == 2
        assert set_up(LaunchConfig("srun"), FOUR, self.SLURM | KEY).device_offset == 0

    def test_keys_go_before_what_slurm_says(self) -> None:
        setup = set_up(LaunchConfig("srun", master_addr="10.0.0.9", master_port=7000), FOUR, self.SLURM | KEY)
        assert setup.rendezvous == ("10.0.0.9", 7000)

    def test_copies_that_the_processes_cannot_be_dealt_to(self) -> None:
        slurm = self.SLURM | {"SLURM_STEP_NUM_TASKS": "3"}
        assert faults(LaunchConfig("srun"), slurm | KEY) == [
            "srun has started 3 processes, to which the 4 processes of parallel.data_parallel=2 x "
            "parallel.model_parallel=2 x parallel.pipeline_stage=1 cannot be divided evenly, 1 to each; make "
            "these a multiple of 3, or start as many as divide 4"
        ]


# As the second node sees it, which does not ask whether the port is free.
NODES = {"master_addr": "127.0.0.1", "master_port": 47_118, "node_rank": 1}


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the kernels had been built here."""
    library = NativeLibrary(Path("kernels.so"), None)  # type: ignore[arg-type]
    monkeypatch.setattr(preflight, "find_library", lambda: library)


def setup_of(topology: Topology = FOUR, **launch: object) -> JobSetup:
    return set_up(LaunchConfig(**launch), topology, KEY)  # type: ignore[arg-type]


def world(setup: JobSetup, provider: str = "native", **runtime: str) -> bool:
    return needs_world(setup, ModelConfig(provider=provider), RuntimeConfig(**runtime))  # type: ignore[arg-type]


def test_npus_and_mindformers_meet_through_mindspore() -> None:
    assert world(setup_of(), device_target="Ascend")
    assert world(setup_of(), provider="mindformers")
    assert not world(setup_of(Topology(4)), provider="mindformers"), "a replica of one rank meets nobody"


def refused(setup: JobSetup) -> str | None:
    try:
        refuse_apart(setup, ModelConfig(), RuntimeConfig())
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("local", "is_whole"), [(2, True), (1, False)])
def test_ranks_of_a_replica_on_several_nodes_are_refused(local: int, is_whole: bool) -> None:
    setup = setup_of(local_worker_num=local, **NODES)
    assert shares_memory(setup) is is_whole
    assert not world(setup)
    fault = refused(setup)
    assert (fault is None) is is_whole
    if fault is not None:
        assert "(launch.local_worker_num a multiple of 2)" in fault
        refuse_apart(setup, ModelConfig(), RuntimeConfig(device_target="Ascend"))


MPIRUN = {**KEY, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "PMIX_NAMESPACE": "a job"}


def by_mpirun(copies: int, topology: Topology = FOUR, **launch: object) -> JobSetup:
    """As the second of so many copies sees it, each on a host of its own."""
    config = LaunchConfig(master_addr="127.0.0.1", **launch)  # type: ignore[arg-type]
    return set_up(config, topology, {**MPIRUN, "OMPI_COMM_WORLD_SIZE": str(copies)})


def joins(setup: JobSetup, provider: str = "native", **runtime: str) -> bool:
    return joins_mpi(setup, ModelConfig(provider=provider), RuntimeConfig(**runtime))  # type: ignore[arg-type]


def test_copies_of_mpirun_on_several_hosts_that_are_the_ranks_meet_through_mpi() -> None:
    assert joins(by_mpirun(4))
    assert joins(by_mpirun(2, Topology(1, 1, 2)))
    assert not joins(by_mpirun(2)), "each copy has a whole replica"
    assert not joins(by_mpirun(2, Topology(1, 4))), "no copy for each rank"
    assert not joins(by_mpirun(4, node_rank=2)), "another place than in MPI"
    assert not joins(by_mpirun(4, launcher="rank_table", rank_table=None))
    assert not joins(by_mpirun(4), device_target="Ascend")
    assert not joins(by_mpirun(4), provider="mindformers")
    assert not joins(setup_of(local_worker_num=1, **NODES)), "nobody has made a world of MPI"


@pytest.mark.parametrize("has_mpi4py", [True, False])
def test_what_ranks_in_mpi_need(has_mpi4py: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ModuleSpec("mpi4py", None) if has_mpi4py else None
    monkeypatch.setattr(installation, "find_spec", lambda name: found)
    setup = replace(by_mpirun(4), joins_mpi=True)
    fault = refused(setup)
    assert (fault is None) is has_mpi4py
    if fault is not None:
        assert missing("mpi4py") in fault
        assert "parallel.data_parallel" in fault
        assert "model.quantization=int8" in fault
        return
    with pytest.raises(ConfigError, match="max_restarts=1: a process that has left MPI cannot join it again"):
        refuse_apart(setup, ModelConfig(), RuntimeConfig(), max_restarts=1)


def test_ranks_without_the_kernels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "find_library", lambda: None)
    assert "the kernels are" in str(refused(setup_of()))
    assert refused(setup_of(Topology(4))) is None


@pytest.mark.parametrize(
    ("given", "variables", "is_own"),
    [(None, {}, True), ("head:6379", {}, False), (None, {"RAY_ADDRESS": "head:6379"}, False)],
)
def test_a_ray_cluster_that_was_there_may_have_several_hosts(
    given: str | None, variables: dict[str, str], is_own: bool
) -> None:
    setup = set_up(LaunchConfig("ray", ray_address=given), FOUR, variables)
    assert setup.ray_address == (given or variables.get("RAY_ADDRESS"))
    assert shares_memory(setup) is is_own
    assert (refused(setup) is None) is is_own
