"""MindBatch with Ray, over a real cluster of two nodes on this machine."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from command_line import CommandLine, wait_until
from mindbatch.ledger.run_folder import RunFolder
from stub_job import lines_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install -e '.[ray]'"),
]

PROCESSES = Path(__file__).parents[1] / "processes"
NO_REPORTS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_worker_prestart": "0"}
DATA = {"key_column": "id", "template": "{{ question }} =", "decoding_column": "own"}
DECODING = {"max_new_tokens": 8, "do_sample": True, "seed": 5}


class Cluster:
    """A cluster in a process of its own; see `ray_cluster.py`."""

    def __init__(self, folder: Path, num_nodes: int) -> None:
        self._errors = folder / "cluster.txt"
        self._process = subprocess.Popen(
            [sys.executable, str(PROCESSES / "ray_cluster.py"), str(num_nodes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors.open("wb"),
            env=os.environ | NO_REPORTS,
            text=True,
        )
        self.environment = NO_REPORTS | {"RAY_ADDRESS": self._answer()}

    def do(self, command: str) -> None:
        """`add` or `remove`: a node."""
        assert self._process.stdin is not None
        print(command, file=self._process.stdin, flush=True)
        assert self._answer() == "done"

    def close(self) -> None:
        """Ends all nodes."""
        self._process.communicate(timeout=120)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, self._errors.read_text()
        return line


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    started = Cluster(tmp_path_factory.mktemp("cluster"), 2)
    yield started
    started.close()


def pipeline(cluster: Cluster, **arguments: Any) -> "subprocess.CompletedProcess[str]":
    """What `ray_pipeline.py` did."""
    return subprocess.run(
        [sys.executable, str(PROCESSES / "ray_pipeline.py"), json.dumps(arguments)],
        env=os.environ | cluster.environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def is_running(process: int) -> bool:
    return Path(f"/proc/{process}/cmdline").exists() and Path(f"/proc/{process}/cmdline").read_bytes() != b""


def wait_until_gone(processes: list[int]) -> None:
    deadline = time.monotonic() + 30
    while remaining := [process for process in processes if is_running(process)]:
        assert time.monotonic() < deadline, f"still there: {remaining}"
        time.sleep(0.1)


def test_a_pipeline_gives_the_results_of_a_batch_run(cluster: Cluster, command: CommandLine) -> None:
    rows = [{"id": f"row {n}", "question": f"{n} + 2", "own": {"top_k": n + 2}, "label": n} for n in range(7)]
    rows[3]["own"] = {"temperature": -1.0}
    (command.here / "rows.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    settings = [f"data.{name}={value!r}" for name, value in DATA.items()]
    settings += [f"decoding.{name}={json.dumps(value)}" for name, value in DECODING.items()]
    run = command.run(
        "batch",
        "model=tiny_gpt2",
        "data.path=rows.jsonl",
        "output.dir=run",
        "output.format=parquet",
        "output.columns=[label]",
        *settings,
        leaves=["rows.jsonl", "run"],
    )
    assert run.returncode == 1, run.stderr
    arguments = {
        "path": "shipped:examples/tiny_gpt2",
        "data": DATA,
        "decoding": DECODING,
        "output": {"columns": ["label"]},
    }
    done = pipeline(cluster, rows=rows, arguments=arguments, batch_format="numpy")
    assert done.returncode == 0, done.stderr
    rows = sorted(json.loads(done.stdout), key=lambda row: row["key"])  # Ray keeps no order
    results = {row["key"]: row for row in rows}
    where = [json.loads(row.pop("where")) for row in results.values()]
    errors = {key: results.pop(key)["error"] for key in [*results] if results[key]["error"] is not None}
    assert [*results.values()] == [
        {**row, "error": None} for row in pq.read_table(command.here / "run/results.parquet").to_pylist()
    ]
    assert errors == {error["key"]: error["reason"] for error in lines_of(command.here / "run/errors.jsonl")}
    assert [*errors] == ["row 3"]

    assert {each["format"] for each in where} == {"dict"}
    assert len({each["node"] for each in where}) == 2
    assert len({each["date"] for each in where}) == 1, "all actors agree on the day of the job"
    assert {each["threads"] for each in where} == {"2"}, "as many as Ray gave it CPUs"
    processes = {each["processes"][0]: each["processes"] for each in where}
    assert len(processes) == 2, "each actor has loaded the model once"
    assert all(len(each) >= 3 for each in processes.values()), "the model and the template have processes"
    wait_until_gone([process for each in processes.values() for process in each])


def test_the_example_runs(cluster: Cluster) -> None:
    example = Path(__file__).parents[2] / "examples/ray/pipeline.py"
    done = subprocess.run(
        [sys.executable, str(example)],
        env=os.environ | cluster.environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"sum-{number} {number} + 2 =  {number + 2}." for number in range(8)]


def has_begun(folder: Path) -> bool:
    """Whether rows of a run are in its ledger."""
    ledger = RunFolder(folder).ledger
    return ledger.exists() and ledger.stat().st_size > 0


def sampled(rows: Path, count: int, length: int) -> list[str]:
    """A batch run over that many rows, each of which gets that many tokens."""
    rows.write_bytes(b"".join(orjson.dumps({"prompt": f"{n} + 2 ="}) + b"\n" for n in range(count)))
    lengths = [f"decoding.min_new_tokens={length}", f"decoding.max_new_tokens={length}"]
    return ["batch", "model=tiny_gpt2", f"data.path={rows}", "decoding=sampling", "decoding.seed=3", *lengths]


def begun(cluster: Cluster, *arguments: str) -> "subprocess.Popen[str]":
    """A run in the cluster, each rank of which takes a whole node."""
    return subprocess.Popen(
        [sys.executable, "-m", "mindbatch", *arguments, "launch=ray", "runtime.num_threads=2"],
        env=os.environ | cluster.environment,
        stderr=subprocess.PIPE,
        text=True,
    )


def assert_same_files(one: Path, other: Path) -> None:
    for name in ("results.jsonl", "errors.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


def test_a_run_over_two_nodes_outlives_one_of_them(
    cluster: Cluster, command: CommandLine, tmp_path: Path
) -> None:
    arguments = sampled(tmp_path / "rows.jsonl", 400, 40)
    alone = command.run(*arguments, f"output.dir={tmp_path / 'alone'}")
    assert alone.returncode == 0, alone.stderr
    run = begun(cluster, *arguments, f"output.dir={tmp_path / 'run'}", "parallel.data_parallel=2")
    wait_until(lambda: has_begun(tmp_path / "run"), run)
    cluster.do("remove")
    cluster.do("add")
    _, said = run.communicate(timeout=300)
    assert run.returncode == 0, said
    assert "started again (1 of 3 times)" in said
    assert_same_files(tmp_path / "run", tmp_path / "alone")
