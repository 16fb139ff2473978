"""A dry run shows each node's commands and environment, and no secret."""

import shlex
import shutil
from pathlib import Path

import pytest

from mindbatch.config.launch_schema import LaunchConfig
from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.launch.preflight import set_up, with_rendezvous
from mindbatch.launch.rank_table import Device, RankTable, Server
from mindbatch.parallel.topology import Topology
from mindbatch.replicas.start import dry_run

KEY = {"MINDBATCH_JOB_KEY": "ab" * 32}
LOGS = Path("/tmp/the logs")
# As the second node sees it, which does not ask whether the port is free.
NODES = {"local_worker_num": 2, "master_addr": "127.0.0.1", "master_port": 47_118, "node_rank": 1}
COMMAND = ["mindbatch", "batch", "data.path=a b.jsonl", "launch.dry_run=true"]


def lines(
    launch: LaunchConfig, topology: Topology, device_target: str = "CPU", *, provider: str = "mindformers"
) -> list[str]:
    model, runtime = ModelConfig(provider=provider), RuntimeConfig(device_target=device_target)
    setup = with_rendezvous(set_up(launch, topology, KEY), model, runtime)
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
    assert told["MINDBATCH_FRONT"] == "127.0.0.1:47118"
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


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no OpenMPI here")
def test_the_program_of_a_launcher() -> None:
    found = lines(LaunchConfig("mpirun"), Topology(2, 1))
    assert found[1] == f"  mpirun, which starts an agent for each rank; in {shlex.quote(str(LOGS))}"
    words = shlex.split(found[2])
    assert words[words.index("mpirun") :][:3] == ["mpirun", "-np", "2"]
    assert "mindbatch.replicas.agent" in words[-2]
    assert variables(found[2])["MINDBATCH_JOB_KEY"] == "(hidden)"


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
