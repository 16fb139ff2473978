"""Agents over real connections, and those of Ray: they tell what ends and never outlast the front."""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import ray_driver_functions as drivers
from ended_processes import wait_for
from listed_processes import ListedProcesses
from mindbatch.io.errors import ConfigError, MindBatchError
from mindbatch.launch.process_plan import RANK, ProcessSpec
from mindbatch.launch.supervisor import EndedProcess
from mindbatch.parallel.connection import connect
from mindbatch.parallel.topology import Topology
from mindbatch.replicas import remote_nodes
from mindbatch.replicas.agent import CoordinatorLost, patient_connection, serve
from mindbatch.replicas.rank_links import RankLinks
from mindbatch.replicas.ray_cluster import RayCluster
from mindbatch.replicas.remote_nodes import RemoteNode, wait_for_agents

KEY = bytes(range(32))
HOST = "127.0.0.1"


def spec(rank: int) -> ProcessSpec:
    return ProcessSpec(
        f"rank_{rank}",
        "rank",
        0,
        rank,
        {"RANK_ID": str(rank), "DEVICE_ID": str(rank), "MINDBATCH_JOB_KEY": KEY.hex()},
    )


class Serving(threading.Thread):
    """An agent in a thread; `outcome` is its exit code or its error."""

    def __init__(self, nodes: "Front", ranks: range, world: int = 4, table: str = "") -> None:
        super().__init__(daemon=True)
        self.processes = ListedProcesses()
        self.outcome: object = None
        self._connection = patient_connection(nodes.address, KEY)
        self._ranks, self._world, self._table = ranks, world, table
        self.start()

    def run(self) -> None:
        try:
            served = (self._ranks, self._world, self._table)
            self.outcome = serve(self._connection, self.processes, KEY, *served)
        except MindBatchError as error:
            self.outcome = error


class Front:
    """Who waits for agents."""

    def __init__(self, expected: Sequence[range], world: int, table: str) -> None:
        self._expected, self._table = expected, table
        self.links = RankLinks(HOST, KEY, world, takes_agents=True)
        self.address = self.links.address
        self.nodes: list[RemoteNode] = []

    def wait(self, check: Callable[[], None] = lambda: None, seconds: float = 600) -> list[RemoteNode]:
        self.nodes = wait_for_agents(self.links, self._expected, self._table, check, seconds=seconds)
        return self.nodes


@contextmanager
def listening(*ranks: range, world: int = 4, table: str = "") -> Iterator[Front]:
    front = Front(ranks, world, table)
    try:
        yield front
    finally:
        front.links.close()
        for node in front.nodes:
            node.close()


@contextmanager
def joined(ranks: range) -> Iterator[tuple[Serving, RemoteNode]]:
    """An agent, and the node that it is to the front."""
    with listening(ranks) as nodes:
        agent = Serving(nodes, ranks)
        [node] = nodes.wait(seconds=10)
        yield agent, node


def test_an_agent_starts_tells_and_ends() -> None:
    with joined(range(2, 4)) as (agent, node):
        node.start_specs([spec(2), spec(3)])
        wait_for(lambda: len(agent.processes.living) == 2)
        assert agent.processes.living["rank_3"] == spec(3)
        agent.processes.fail("rank_2", "exit code 1", "no memory")
        assert wait_for(node.ended) == [EndedProcess("rank_2", "exit code 1", ("no memory",))]
        node.end(["rank_2", "rank_3"])
        assert agent.processes.living == {}
        assert node.ended() == []
        node.start_specs([spec(2)])
        wait_for(lambda: agent.processes.living)
    agent.join(10)
    assert (agent.outcome, agent.processes.living) == (0, {})


def test_an_end_that_nobody_has_asked_for_is_not_that_of_the_process_started_next() -> None:
    with joined(range(2, 4)) as (agent, node):
        node.start_specs([spec(2)])
        wait_for(lambda: agent.processes.living)
        agent.processes.fail("rank_2")
        wait_for(lambda: node._ended)
        node.end(["rank_2"])
        node.start_specs([spec(2)])
        assert node.ended() == []


def test_the_key_does_not_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    with joined(range(4)) as (agent, node):
        send = node._connection.send
        monkeypatch.setattr(
            node._connection, "send", lambda kind, **fields: (sent.append(str(fields)), send(kind, **fields))
        )
        node.start_specs([spec(0)])
        wait_for(lambda: agent.processes.living)
    assert "RANK_ID" in sent[0]
    assert KEY.hex() not in "".join(sent)


def test_what_cannot_be_started_has_ended() -> None:
    with joined(range(4)) as (agent, node):
        agent.processes.refused = ["rank_1"]
        node.start_specs([spec(1)])
        found: list[EndedProcess] = []
        wait_for(lambda: found.extend(node.ended()) or found)
        lines = ("rank_1 cannot be started",)
        assert found == [EndedProcess("rank_1", "was not started", lines, is_lost=True)]


def test_ranks_are_lost_with_their_agent() -> None:
    with joined(range(4)) as (agent, node):
        node.start_specs([spec(0), spec(1)])
        agent._connection.close()
        found: list[EndedProcess] = []
        wait_for(lambda: found.extend(node.ended()) or len(found) == 2)
        assert [each.name for each in found] == ["rank_0", "rank_1"]
        assert found[0].exit_reason.startswith("was lost with its node ")
        assert all(each.is_lost for each in found)
        assert node.ended() == []
        node.end()


def test_an_agent_with_other_ranks_is_refused() -> None:
    with listening(range(2, 4)) as nodes:
        agent = Serving(nodes, range(4, 8), world=8)
        with pytest.raises(
            MindBatchError, match="came for the ranks 4 to 7 of 8, which nobody wants of the 4 "
        ):
            nodes.wait(seconds=10)
        agent.join(10)
    assert isinstance(agent.outcome, CoordinatorLost)


@pytest.mark.parametrize("theirs", ["ours", "", "another"])
def test_an_agent_must_have_the_same_rank_table(theirs: str) -> None:
    with listening(range(2, 4), table="ours") as nodes:
        agent = Serving(nodes, range(2, 4), table=theirs)
        if theirs == "ours":
            assert len(nodes.wait(seconds=10)) == 1
            return
        with pytest.raises(MindBatchError, match="HCCL wants the same on all: copy it there"):
            nodes.wait(seconds=10)
        agent.join(10)
    assert isinstance(agent.outcome, CoordinatorLost)


@pytest.mark.slow
def test_who_has_not_come_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(remote_nodes, "_QUIET_SECONDS", 0.0)
    with listening(range(2), range(2, 4)) as nodes:
        Serving(nodes, range(2))
        with pytest.raises(
            MindBatchError, match=r"nobody has come to 127.0.0.1:\d+ in 1 s for the ranks 2 to 3"
        ):
            nodes.wait(seconds=1)
    assert capsys.readouterr().err.count("for the ranks") == 1


def test_waiting_ends_when_it_is_in_vain() -> None:
    def check() -> None:
        raise MindBatchError("the driver ended with exit code 1")

    with listening(range(4)) as nodes, pytest.raises(MindBatchError, match="the driver ended"):
        nodes.wait(check, seconds=10)


def test_a_foreign_process_is_no_agent() -> None:
    with listening(range(4)) as nodes:
        with pytest.raises(ConnectionError):
            connect(nodes.address, bytes(32))
        with pytest.raises(MindBatchError, match="nobody has come"):
            nodes.wait(seconds=0)


def test_an_agent_waits_for_the_front_and_says_where() -> None:
    tried: list[float] = []
    with listening(range(4)) as nodes:
        host, port = nodes.address
    with pytest.raises(MindBatchError) as caught:
        patient_connection((host, port), KEY, 0.0, tried.append)
    [fault] = caught.value.lines
    assert fault.startswith(f"launch: node 0 was not found at 127.0.0.1:{port} in 0 s (Connection refused); ")


def test_an_agent_with_another_key_says_so_soon() -> None:
    tried: list[float] = []
    another = pytest.raises(MindBatchError, match="has another MINDBATCH_JOB_KEY, or is not of MindBatch")
    with listening(range(4)) as nodes, another:
        patient_connection(nodes.address, bytes(32), 600.0, tried.append)
    assert not tried


def test_a_front_whose_host_does_not_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(address: object, key: bytes) -> None:
        raise TimeoutError("timed out")  # as of socket.create_connection, without a number

    monkeypatch.setattr("mindbatch.replicas.agent.connect", connect)
    with pytest.raises(MindBatchError, match=r"node 0 was not found at host:1 in 0 s \(timed out\)"):
        patient_connection(("host", 1), KEY, 0.0)


def test_devices_are_counted_on_after_those_of_other_agents_of_the_host() -> None:
    with listening(range(2, 4)) as nodes:
        processes = ListedProcesses()
        connection = patient_connection(nodes.address, KEY)
        arguments = (connection, processes, KEY, range(2, 4), 4, "", 8)
        agent = threading.Thread(target=serve, args=arguments, daemon=True)
        agent.start()
        [node] = nodes.wait(seconds=10)
        node.start_specs([spec(3)])
        wait_for(lambda: processes.living)
        assert processes.living["rank_3"].variables["DEVICE_ID"] == "11"


Made = Callable[..., RayCluster]


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


def ray_spec(rank: int) -> ProcessSpec:
    variables = {"RANK_ID": str(rank % 2), "DEVICE_ID": "0"}
    return ProcessSpec(f"rank_{rank}", RANK, rank // 2, rank, variables)


def test_an_end_is_told_once_and_not_of_what_was_ended_here(cluster: Made) -> None:
    made = cluster(drivers.hasty)
    assert made.host == "10.0.0.7"
    with agent_of(made) as node:
        node.start_specs([ray_spec(0), ray_spec(3)])
        [(name, how, [line], is_lost)] = wait_for(node.ended)
        assert (name, how, is_lost) == ("rank_3", "exit code 7", False)
        assert json.loads(line) == ["rank_3", 1, 3, "1"]
        assert node.ended() == []
        node.start_specs([ray_spec(2)])
        node.end(["rank_2"])
        assert node.ended() == []


def test_when_the_driver_ends_all_ranks_have(cluster: Made) -> None:
    with agent_of(cluster(drivers.dying)) as node:
        node.start_specs([ray_spec(0), ray_spec(1)])
        how = "was lost: the job's Ray driver: exit code 3"
        lines = ("the cluster is gone",)
        assert wait_for(node.ended) == [
            EndedProcess(f"rank_{rank}", how, lines, is_lost=True) for rank in (0, 1)
        ]
        node.start_specs([ray_spec(2)])
        assert [each.name for each in wait_for(node.ended)] == ["rank_2"], "nobody starts it any more"


def test_a_driver_that_ends_before_it_serves_is_told(cluster: Made) -> None:
    with pytest.raises(MindBatchError) as caught, agent_of(cluster(drivers.gone)):
        pass
    assert [*caught.value.lines] == [
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
