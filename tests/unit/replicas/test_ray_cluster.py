"""The ranks of a job in a Ray cluster, over drivers that know no Ray."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import ray_driver_functions as drivers
from ended_processes import wait_for
from mindbatch.io.errors import ConfigError, MindBatchError
from mindbatch.launch.process_plan import RANK, ProcessSpec
from mindbatch.launch.supervisor import EndedProcess
from mindbatch.parallel.topology import Topology
from mindbatch.replicas.rank_links import RankLinks
from mindbatch.replicas.ray_cluster import RayCluster
from mindbatch.replicas.remote_nodes import RemoteNode, wait_for_agents

Made = Callable[..., RayCluster]
KEY = bytes(range(32))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Makes the cluster of two replicas of two with a driver."""

    def make(driver: Callable[..., None], address: str | None = None) -> RayCluster:
        monkeypatch.setattr("mindbatch.replicas.ray_cluster.drive", driver)
        return RayCluster(address, Topology(2, 2), {"CPU": 1.0}, print, tmp_path / "ray.log", None)

    return make


@contextmanager
def agent_of(made: RayCluster) -> Iterator[RemoteNode]:
    """The node of all ranks, as `start_ranks` has it."""
    with ExitStack() as stack:
        links = RankLinks("127.0.0.1", KEY, 4, takes_agents=True)
        stack.callback(made.end)
        stack.callback(links.close)
        made.start(links.address, KEY)
        [node] = wait_for_agents(links, [range(4)], check=made.check, seconds=30)
        node.loss = made.loss
        yield node
        node.close()
        assert node.ended() == []
        node.close()


def spec(rank: int) -> ProcessSpec:
    variables = {"RANK_ID": str(rank % 2), "DEVICE_ID": "0"}
    return ProcessSpec(f"rank_{rank}", RANK, rank // 2, rank, variables)


def test_an_end_is_told_once_and_not_of_what_was_ended_here(cluster: Made) -> None:
    made = cluster(drivers.hasty)
    assert made.host == "10.0.0.7"
    with agent_of(made) as node:
        node.start_specs([spec(0), spec(3)])
        [(name, how, [line], is_lost)] = wait_for(node.ended)
        assert (name, how, is_lost) == ("rank_3", "exit code 7", False)
        assert json.loads(line) == ["rank_3", 1, 3, "1"]
        assert node.ended() == []
        node.start_specs([spec(2)])
        node.end(["rank_2"])
        assert node.ended() == []


def test_when_the_driver_ends_all_ranks_have(cluster: Made) -> None:
    with agent_of(cluster(drivers.dying)) as node:
        node.start_specs([spec(0), spec(1)])
        how = "was lost: the job's Ray driver: exit code 3"
        lines = ("the cluster is gone",)
        assert wait_for(node.ended) == [
            EndedProcess(f"rank_{rank}", how, lines, is_lost=True) for rank in (0, 1)
        ]
        node.start_specs([spec(2)])
        assert [each.name for each in wait_for(node.ended)] == ["rank_2"], "nobody starts it any more"


def test_a_driver_that_ends_before_it_serves_is_told(cluster: Made) -> None:
    with pytest.raises(MindBatchError) as caught, agent_of(cluster(drivers.gone)):
        pass
    assert [*caught.value.faults] == [
        "launch=ray: the job's Ray driver: exit code 3",
        "the cluster is gone",
    ]


def test_what_ray_says_of_the_cluster_is_said(cluster: Made) -> None:
    with pytest.raises(MindBatchError, match="^launch=ray: the Ray cluster auto: Version mismatch: 1 and 2"):
        cluster(drivers.failing, "auto")


def test_an_address_at_which_nobody_listens(cluster: Made) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(ConfigError, match=f"no Ray cluster is at {address} "):
        cluster(drivers.hasty, address)
