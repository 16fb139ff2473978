"""The ranks of a job in a Ray cluster, over drivers that know no Ray."""

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ray_driver_functions as drivers
from mindbatch.io.errors import ConfigError, MindBatchError
from mindbatch.launch.process_plan import RANK, ProcessSpec
from mindbatch.launch.ray_ranks import RayRanks
from mindbatch.launch.supervisor import EndedProcess
from mindbatch.parallel.topology import Topology

Made = Callable[..., RayRanks]


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Makes the ranks of two replicas of two with a driver."""

    def make(driver: Callable[..., None], address: str | None = None) -> RayRanks:
        monkeypatch.setattr("mindbatch.launch.ray_ranks.drive", driver)
        return RayRanks(address, Topology(2, 2), {"CPU": 1.0}, print, tmp_path / "ray.log", None)

    return make


def spec(rank: int) -> ProcessSpec:
    return ProcessSpec(f"rank_{rank}", RANK, rank // 2, rank, {"RANK_ID": str(rank % 2)})


def ended(ranks: RayRanks) -> list[EndedProcess]:
    """What is told next."""
    deadline = time.monotonic() + 10
    while not (found := ranks.ended()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def test_an_end_is_told_once_and_not_of_what_was_ended_here(ranks: Made) -> None:
    made = ranks(drivers.hasty)
    assert made.host == "10.0.0.7"
    made.start_specs([spec(0), spec(3)])
    [(name, how, [line], is_lost)] = ended(made)
    assert (name, how, is_lost) == ("rank_3", "exit code 7", False)
    told: dict[str, Any] = json.loads(line)
    assert told == {"name": "rank_3", "replica": 1, "local_rank": 1, "variables": {"RANK_ID": "1"}}
    assert made.ended() == []
    made.start_specs([spec(2)])
    made.end(["rank_2"])
    assert made.ended() == []
    made.close()
    assert made.ended() == []
    made.close()


def test_when_the_driver_ends_all_ranks_have(ranks: Made) -> None:
    made = ranks(drivers.dying)
    made.start_specs([spec(0), spec(1)])
    how = "was lost: the job's Ray driver: exit code 3"
    lines = ("the cluster is gone",)
    assert ended(made) == [EndedProcess(f"rank_{rank}", how, lines, is_lost=True) for rank in (0, 1)]
    made.start_specs([spec(2)])
    assert [each.name for each in ended(made)] == ["rank_2"], "nobody starts it any more"
    made.close()


def test_what_ray_says_of_the_cluster_is_said(ranks: Made) -> None:
    with pytest.raises(MindBatchError, match="^launch=ray: the Ray cluster auto: Version mismatch: 1 and 2"):
        ranks(drivers.failing, "auto")


def test_an_address_at_which_nobody_listens(ranks: Made) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(ConfigError, match=f"no Ray cluster is at {address} "):
        ranks(drivers.hasty, address)
