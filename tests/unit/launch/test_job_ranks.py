"""The processes of a job: where each is started and told what, as a dry run shows; ports; how they end."""

import shlex
import socket
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from listed_processes import ListedProcesses
from mindbatch.config.launch_schema import LaunchConfig
from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.io.errors import MindBatchError
from mindbatch.launch.free_ports import HeldPort
from mindbatch.launch.job_ranks import EndedRank, JobRanks
from mindbatch.launch.preflight import set_up, with_rendezvous
from mindbatch.launch.process_plan import JobSetup, inherited, take_rank_environment
from mindbatch.launch.rank_table import Device, RankTable, Server
from mindbatch.parallel.topology import Topology
from mindbatch.replicas.start import dry_run


def started(*nodes: ListedProcesses, dp: int = 2, mp: int = 2) -> JobRanks:
    job = JobSetup(Topology(dp, mp), dp * mp // len(nodes), key=bytes(32), coordinator=("127.0.0.1", 1))
    for number, node in enumerate(nodes):
        node.ranks = job.ranks_of(number)
    return JobRanks(job, nodes)


def test_an_end_is_told_once_with_the_last_lines() -> None:
    node = ListedProcesses()
    ranks = started(node)
    node.fail("rank_3", "exit code 1", "out of memory")
    assert ranks.last_lines(2) == ("last of rank_2",)
    assert ranks.ended() == [EndedRank(3, "exit code 1", ("out of memory",))]
    assert ranks.ended() == []


def test_a_scheduler_that_fails_is_its_replicas_failure() -> None:
    node = ListedProcesses()
    ranks = started(node)
    node.fail("scheduler_1", "exit code 255", "address already in use")
    [ended] = ranks.ended()
    assert (ended.rank, ended.last_lines, ended.is_lost) == (2, ("address already in use",), True)
    assert ended.exit_reason == "was ended: MindSpore's scheduler of its replica ended with exit code 255"


def test_a_scheduler_that_ends_after_its_ranks_is_no_news() -> None:
    node = ListedProcesses()
    ranks = started(node)
    node.fail("scheduler_0", "exit code 0")
    assert ranks.ended() == []
    node.fail("rank_2")
    node.fail("scheduler_1", "exit code 1")
    assert [ended.rank for ended in ranks.ended()] == [2]


def test_a_replica_is_started_anew_alone() -> None:
    first, second = ListedProcesses(), ListedProcesses()
    ranks = started(first, second)
    port = first.living["scheduler_1"].variables["MS_SCHED_PORT"]
    second.fail("rank_2")
    assert [ended.rank for ended in ranks.ended()] == [2]
    second.fail("rank_3")
    ranks.restart(1, 1)
    assert ranks.ended() == []
    assert {*first.living, *second.living} == {f"rank_{n}" for n in range(4)} | {"scheduler_0", "scheduler_1"}
    assert second.living["rank_3"].variables["MINDBATCH_ATTEMPT"] == "1"
    assert first.living["rank_0"].variables["MINDBATCH_ATTEMPT"] == "0"
    assert first.living["scheduler_1"].variables["MS_SCHED_PORT"] != port
    first.fail("scheduler_1", "exit code 255")
    assert [ended.rank for ended in ranks.ended()] == [2]


def test_all_nodes_are_ended_also_when_a_process_cannot_be_started() -> None:
    first, second = ListedProcesses(), ListedProcesses(refused=["rank_3"])
    with pytest.raises(MindBatchError, match="rank_3 cannot be started"):
        started(first, second)
    assert (first.living, second.living) == ({}, {})
    assert (first.closed, second.closed) == (1, 1)


KEY = bytes(32)


def plan(dp: int, mp: int, pp: int = 1, local: int | None = None, *, has_schedulers: bool = True) -> JobSetup:
    topology = Topology(dp, mp, pp)
    return JobSetup(
        topology,
        local or topology.world_size,
        key=KEY,
        coordinator=("10.0.0.1", 7000),
        has_schedulers=has_schedulers,
    )


def test_a_replica_of_one_rank_needs_no_scheduler() -> None:
    [spec] = plan(3, 1).specs(2, attempt=1, scheduler_port=0)
    assert (spec.name, spec.role, spec.replica, spec.rank) == ("rank_2", "rank", 2, 2)
    told = take_rank_environment(spec.variables)
    assert (told.coordinator, told.key, told.rank, told.attempt) == (("10.0.0.1", 7000), KEY, 2, 1)
    assert spec.variables["DEVICE_ID"] == "2"
    assert not [name for name in spec.variables if name.startswith("MS_")]


def test_the_ranks_of_a_replica_are_a_world_of_their_own() -> None:
    scheduler, *ranks = plan(2, 2, 2, local=4).specs(1, attempt=0, scheduler_port=7100)
    assert (scheduler.name, scheduler.role, scheduler.rank) == ("scheduler_1", "scheduler", 4)
    assert scheduler.variables["MS_ROLE"] == "MS_SCHED"
    assert [spec.rank for spec in ranks] == [4, 5, 6, 7]
    for local, spec in enumerate(ranks):
        wanted = {
            "MS_ROLE": "MS_WORKER",
            "MS_SCHED_HOST": "10.0.0.1",
            "MS_SCHED_PORT": "7100",
            "MS_WORKER_NUM": "4",
            "MS_NODE_ID": str(local),
            "RANK_ID": str(local),
            "RANK_SIZE": "4",
            "DEVICE_ID": str(local),
        }
        assert {name: spec.variables[name] for name in wanted} == wanted


def test_what_a_launcher_has_set_is_not_handed_on() -> None:
    given = {
        "PATH": "/bin",
        "GLOG_v": "3",
        "MS_ROLE": "MS_WORKER",
        "MS_ENABLE_LCCL": "on",
        "RANK_ID": "3",
        "OMPI_COMM_WORLD_RANK": "1",
        "PMIX_RANK": "1",
        "MINDBATCH_JOB_KEY": "ab",
        "ASCEND_HOME_PATH": "/usr/local/Ascend",
    }
    assert inherited(given) == {
        "PATH": "/bin",
        "GLOG_v": "3",
        "MS_ENABLE_LCCL": "on",
        "ASCEND_HOME_PATH": "/usr/local/Ascend",
    }


def test_a_held_port_is_given_to_nobody_else() -> None:
    with ExitStack() as opened:
        drawn = [opened.enter_context(closing(HeldPort("127.0.0.1"))).number for _ in range(405)]
        assert len(set(drawn)) == len(drawn) == 405


def test_whoever_is_told_its_number_may_listen_there() -> None:
    with closing(HeldPort("127.0.0.1")) as held, socket.create_server(("127.0.0.1", held.number)):
        socket.create_connection(("127.0.0.1", held.number)).close()
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", held.number))


def test_an_address_of_another_machine() -> None:
    with pytest.raises(MindBatchError, match="^192.0.2.1: no address of this machine"):
        HeldPort("192.0.2.1")


JOB_KEY = {"MINDBATCH_JOB_KEY": "ab" * 32}
LOGS = Path("/tmp/the logs")
# As the second node sees it, which does not ask whether the port is free.
NODES = {"local_worker_num": 2, "master_addr": "127.0.0.1", "master_port": 47_118, "node_rank": 1}
COMMAND = ["mindbatch", "batch", "data.path=a b.jsonl", "launch.dry_run=true"]


def lines(
    launch: LaunchConfig, topology: Topology, device_target: str = "CPU", *, provider: str = "mindformers"
) -> list[str]:
    model, runtime = ModelConfig(provider=provider), RuntimeConfig(device_target=device_target)
    setup = with_rendezvous(set_up(launch, topology, JOB_KEY), model, runtime)
    return [*dry_run(setup, COMMAND, LOGS)]


def variables(line: str) -> dict[str, str]:
    """Those before the program."""
    words = shlex.split(line)
    first = next(number for number, word in enumerate(words) if "=" not in word)
    return dict(word.split("=", 1) for word in words[:first])


def test_every_process_of_every_node() -> None:
    found = lines(LaunchConfig(**NODES), Topology(2, 2))  # type: ignore[arg-type]
    heads = [line for line in found if not line.startswith("    ")]
    assert heads == [
        "node 0: ranks 0 to 1; coordinates the job, the other nodes find it at 127.0.0.1:47118",
        *("  scheduler_0", "  rank_0", "  rank_1", "  scheduler_1"),
        "node 1: ranks 2 to 3; the user starts there: MINDBATCH_JOB_KEY=(hidden) mindbatch batch "
        "'data.path=a b.jsonl' launch.node_rank=1",
        *("  rank_2", "  rank_3"),
    ]
    told = variables(found[found.index("  rank_3") + 1])
    assert told["MINDBATCH_RANK"] == "3"
    assert told["MINDBATCH_COORDINATOR"] == "127.0.0.1:47118"
    assert told["MS_SCHED_HOST"] == "127.0.0.1"
    assert (told["MS_NODE_ID"], told["MS_WORKER_NUM"], told["DEVICE_ID"]) == ("1", "2", "1")
    assert told["MINDBATCH_JOB_KEY"] == "(hidden)"
    assert "ab" * 8 not in "".join(found)


def test_ranks_that_meet_in_memory_have_no_scheduler() -> None:
    found = lines(LaunchConfig(), Topology(2, 2), provider="native")
    assert [line for line in found[1:] if not line.startswith("    ")] == [f"  rank_{n}" for n in range(4)]
    told = variables(found[found.index("  rank_3") + 1])
    assert (told["MINDBATCH_RANK"], told["RANK_ID"], told["RANK_SIZE"]) == ("3", "1", "2")
    assert not [name for name in told if name.startswith("MS_")]


@pytest.mark.parametrize(("device_target", "has_scheduler"), [("CPU", True), ("Ascend", False)])
def test_ranks_of_a_rank_table(tmp_path: Path, device_target: str, has_scheduler: bool) -> None:
    devices = tuple(Device(7 - number, device_ip=f"10.1.0.{number}") for number in range(4))
    path = tmp_path / "table.json"
    path.write_bytes(RankTable.numbered("1.0", [Server("10.0.0.1", devices)]).to_bytes())
    found = lines(LaunchConfig("rank_table", rank_table=str(path)), Topology(2, 2), device_target)
    assert ("  scheduler_0" in found) is has_scheduler
    told = variables(found[found.index("  rank_3") + 1])
    assert told["RANK_TABLE_FILE"] == f"{LOGS}/rank_table_1.json"
    assert (told["RANK_ID"], told["RANK_SIZE"], told["DEVICE_ID"]) == ("1", "2", "4")
    assert ("MS_ROLE" in told) is has_scheduler
