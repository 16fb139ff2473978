"""Ranks of one replica on several hosts, pretended by mpirun's variables: they meet through MPI."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ended_processes import are_gone, descendants

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="no OpenMPI here"),
]

MINDBATCH = (sys.executable, "-m", "mindbatch")
ON_HOSTS = ("env", "OMPI_COMM_WORLD_LOCAL_SIZE=1", "OMPI_COMM_WORLD_LOCAL_RANK=0", *MINDBATCH)
"""As on a host of its own."""
SECONDS = 240
LINE = "mindbatch: "


def mpirun(copies: int) -> list[str]:
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return ["mpirun", "-q", *as_root, "--oversubscribe", "--bind-to", "none", "-n", str(copies), *ON_HOSTS]


def environment() -> dict[str, str]:
    return {**os.environ, "MINDBATCH_JOB_KEY": secrets.token_hex(32)}


def batch(folder: Path, run: str, *keys: str) -> list[str]:
    """The arguments of a run; its rows are made where they are not there."""
    rows = folder / "rows.jsonl"
    if not rows.exists():
        rows.write_text("".join(f'{{"id": "{n}", "prompt": "{n} plus"}}\n' for n in range(60)))
    given = ("model=tiny_gpt2", "data.key_column=id", "decoding.max_new_tokens=30", "decoding.do_sample=true")
    return ["batch", *given, f"data.path={rows}", f"output.dir={folder / run}", *keys]


def results(folder: Path, run: str, copies: int, *keys: str) -> bytes:
    """Of so many copies on as many hosts, or of one command on this one."""
    hosts = [*mpirun(copies)] if copies else [*MINDBATCH]
    there = ["launch.master_addr=127.0.0.1"] if copies else []
    command = [*hosts, *batch(folder, run, *keys), *there]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert "exiting improperly" not in done.stderr, "the ranks have left MPI"
    return (folder / run / "results.jsonl").read_bytes()


@pytest.mark.parametrize(("slices", "stages", "replicas"), [(4, 1, 1), (2, 2, 1), (2, 1, 2)])
def test_the_bits_are_those_of_one_host(slices: int, stages: int, replicas: int, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    divided = [f"parallel.model_parallel={slices}", f"parallel.pipeline_stage={stages}"]
    scored = "decoding.logprobs=2"
    whole = [*divided, f"parallel.data_parallel={replicas}", scored]
    over_hosts = results(tmp_path, "hosts", slices * stages * replicas, *whole)
    assert over_hosts == results(tmp_path, "host", 0, *divided, scored)


def test_the_tokens_are_those_of_one_process(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    greedy = "decoding.do_sample=false"
    over_hosts = results(tmp_path, "hosts", 2, "parallel.model_parallel=2", greedy)
    assert texts(over_hosts) == texts(results(tmp_path, "one", 0, greedy))


def texts(found: bytes) -> list[str]:
    rows = [json.loads(line) for line in found.splitlines()]
    return [each["text"] for row in rows for each in row["generations"]]


@pytest.mark.parametrize(
    ("rank", "number", "how"),
    [(1, signal.SIGKILL, "signal 9"), (0, signal.SIGSEGV, "signal 11"), (1, signal.SIGTERM, "signal 14")],
)
def test_a_rank_that_ends_takes_the_others_along(rank: int, number: int, how: str, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    keys = ("parallel.model_parallel=2", "launch.master_addr=127.0.0.1", "decoding.num_return_sequences=100")
    command = [*mpirun(2), *batch(tmp_path, "run", *keys)]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as job:
        try:
            ranks = wait_for_steps(job, tmp_path / "run")
            os.kill(ranks[f"rank_{rank}"], number)
            _, said = job.communicate(timeout=30)
        finally:
            with suppress(ProcessLookupError):
                job.kill()
    assert job.returncode == 75
    assert f"{LINE}rank {rank} ended with {how}\n" in said
    assert "Traceback" not in said
    assert are_gone(set(ranks.values()), seconds=5)


def wait_for_steps(job: "subprocess.Popen[str]", run: Path) -> dict[str, int]:
    """The ranks by name, once rows are safe."""
    deadline = time.monotonic() + SECONDS
    while not (run / "ledger.jsonl").exists():
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return {name: process for process, name in descendants(job.pid).items() if name}


def test_ranks_that_end_are_not_started_again(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    keys = ("parallel.model_parallel=2", "launch.master_addr=127.0.0.1", "launch.max_restarts=1")
    assert "launch.max_restarts=1: a process that has left MPI cannot join it again" in refusal(
        tmp_path, *keys
    )


def refusal(folder: Path, *keys: str) -> str:
    command = [*mpirun(2), *batch(folder, "run", *keys)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 2, done.stderr
    return done.stderr
