"""A server that is sent what no client should send. server_faults.py sends more."""

from pathlib import Path

import pytest

from harness.scripts import run_script


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("requests", "connections", "rounds"),
    [(200, 90, 0), pytest.param(20_000, 500, 3, marks=pytest.mark.on_demand)],
    ids=["few", "many"],
)
def test_a_server_refuses_what_is_wrong_and_is_at_rest_afterwards(
    tmp_path: Path, requests: int, connections: int, rounds: int
) -> None:
    numbers = ("--requests", requests, "--connections", connections, "--rounds", rounds)
    printed = run_script("server_faults", tmp_path / "faults", *numbers)
    assert printed.startswith(f"{requests} mutated requests, ")
