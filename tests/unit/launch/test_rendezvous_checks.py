"""Where the ranks of a replica meet, and who has nothing to meet in."""

from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from mindbatch.config import machine
from mindbatch.config.launch_schema import LaunchConfig
from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.io.errors import ConfigError
from mindbatch.kernels.native_library import NativeLibrary
from mindbatch.launch import preflight
from mindbatch.launch.preflight import joins_mpi, needs_world, refuse_apart, set_up, shares_memory
from mindbatch.launch.process_plan import JobSetup
from mindbatch.launch.rank_table import Device, RankTable, Server
from mindbatch.parallel.topology import Topology

# As the second node sees it, which does not ask whether the port is free.
NODES = {"master_addr": "127.0.0.1", "master_port": 47_118, "node_rank": 1}
KEY = {"MINDBATCH_JOB_KEY": "ab" * 32}
FOUR = Topology(2, 2)


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the kernels had been built here."""
    library = NativeLibrary(Path("kernels.so"), None)  # type: ignore[arg-type]
    monkeypatch.setattr(preflight, "find_library", lambda: library)


def setup_of(topology: Topology = FOUR, **launch: object) -> JobSetup:
    return set_up(LaunchConfig(**launch), topology, KEY)  # type: ignore[arg-type]


def world(setup: JobSetup, provider: str = "native", **runtime: str) -> bool:
    return needs_world(setup, ModelConfig(provider=provider), RuntimeConfig(**runtime))  # type: ignore[arg-type]


@pytest.mark.parametrize("launcher", ["dynamic", "msrun", "rank_table"])
@pytest.mark.parametrize("sizes", [(1, 2), (2, 2), (1, 1, 2), (1, 2, 2)])
def test_one_host_with_the_kernels_needs_none(launcher: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    topology, table = Topology(*sizes), None
    if launcher == "rank_table":
        devices = tuple(Device(number) for number in range(topology.world_size))
        table = tmp_path / "table.json"
        table.write_bytes(RankTable.numbered("1.0", [Server("10.0.0.1", devices)]).to_bytes())
    setup = setup_of(topology, launcher=launcher, rank_table=None if table is None else str(table))
    assert shares_memory(setup)
    assert not world(setup)
    assert not world(setup, kernels="native")


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
    monkeypatch.setattr(machine, "find_spec", lambda name: found)
    setup = replace(by_mpirun(4), joins_mpi=True)
    fault = refused(setup)
    assert (fault is None) is has_mpi4py
    if fault is not None:
        assert "mpi4py is not installed here; pip install -e '.[mpi]' -c constraints.txt" in fault
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
