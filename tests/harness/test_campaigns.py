"""Jobs, ranks and servers that are killed, stopped or attacked end as if nobody had touched them.

The scripts do more: see each of them.
"""

import re
from pathlib import Path

import pytest

from harness.networks import NoNetworks, other_host
from harness.scripts import run_script
from small_qwen3 import write_small_qwen3

pytestmark = [pytest.mark.slow]
INT8 = ("--settings", "model.quantization=int8")
BFLOAT16 = ("--settings", "model.dtype=bfloat16")
on_demand = pytest.mark.on_demand


@pytest.mark.processes
@pytest.mark.parametrize(
    ("kills", "rows", "seed", "settings"),
    [
        (1, 40, 133, ()),
        (1, 40, 133, BFLOAT16),
        (1, 40, 133, INT8),
        (1, 40, 133, (*INT8, "runtime.instruction_set=portable")),
        pytest.param(15, 120, 5, (), marks=on_demand),
        pytest.param(9, 120, 5, BFLOAT16, marks=on_demand),
        pytest.param(9, 120, 5, INT8, marks=on_demand),
    ],
)
def test_a_killed_job_ends_like_an_unbroken_one(
    tmp_path: Path, kills: int, rows: int, seed: int, settings: tuple[str, ...]
) -> None:
    """With the real engine at work."""
    numbers = ("--kills", kills, "--rows", rows, "--seed", seed)
    assert run_script("engine_kills", tmp_path, *numbers, *settings).startswith(f"{kills} kills")


@on_demand
def test_a_killed_job_of_mindformers_own_model(tmp_path: Path) -> None:
    words = ("--kills", 3, "--rows", 200, "--model", write_small_qwen3(tmp_path / "qwen3"))
    printed = run_script("engine_kills", tmp_path, *words, "--settings", "model.provider=mindformers")
    assert printed.startswith("3 kills")


@pytest.mark.parametrize(
    ("faults", "rows", "seed"),
    [
        pytest.param(60, 60, 0, marks=pytest.mark.processes),
        pytest.param(500, 200, 1, marks=on_demand),
    ],
)
def test_ranks_that_are_killed_and_stopped(tmp_path: Path, faults: int, rows: int, seed: int) -> None:
    numbers = ("--faults", faults, "--rows", rows, "--seed", seed)
    printed = run_script("rank_kills", tmp_path / "runs", *numbers)
    assert printed.endswith(f"\n{faults} faults\n")
    restarted = re.search(r"^(\d+) replicas started again", printed, re.MULTILINE)
    assert restarted is not None
    assert int(restarted[1]) >= faults // 6


@pytest.mark.processes
def test_a_host_that_is_cut_off(tmp_path: Path) -> None:
    try:
        with other_host():
            pass
    except NoNetworks as error:
        pytest.skip(f"no network namespaces here: {error}")
    printed = run_script("rank_kills", tmp_path / "runs", "--faults", 0, "--cuts", 3)
    assert "3 x host cut off for a while\n" in printed
    assert not printed.endswith("\n0 replicas started again, 0 runs with rows to blame\n3 faults\n")
    assert printed.endswith(" 0 runs with rows to blame\n3 faults\n")


@pytest.mark.processes
@pytest.mark.parametrize(("kills", "rows"), [(2, 100), pytest.param(200, 1000, marks=on_demand)])
def test_batches_of_a_killed_server_end_like_unbroken_runs(tmp_path: Path, kills: int, rows: int) -> None:
    printed = run_script("server_kills", tmp_path, "--kills", kills, "--rows", rows)
    assert printed.startswith(f"{kills} kills, ")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("requests", "connections", "rounds"), [(200, 90, 0), pytest.param(20_000, 500, 3, marks=on_demand)]
)
def test_a_server_refuses_what_is_wrong_and_is_at_rest_afterwards(
    tmp_path: Path, requests: int, connections: int, rounds: int
) -> None:
    numbers = ("--requests", requests, "--connections", connections, "--rounds", rounds)
    printed = run_script("server_faults", tmp_path / "faults", *numbers)
    assert printed.startswith(f"{requests} mutated requests, ")


@pytest.mark.parametrize(("requests", "mib"), [(5, 30), pytest.param(300, 62, marks=on_demand)])
def test_no_single_request_stops_the_others(tmp_path: Path, requests: int, mib: int) -> None:
    printed = run_script("large_requests", tmp_path, "--requests", requests, "--mib", mib)
    assert printed == f"{requests} large requests\n"
