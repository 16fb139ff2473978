"""Real rank processes that are killed, and whose command is killed or interrupted: nothing lost or left."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from command_line import heed_signals
from ended_processes import are_gone, descendants, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.processes]

MINDBATCH = Path(sys.executable).with_name("mindbatch")
SECONDS_TO_END = 5.0
LONGEST = 240.0
SETTINGS = (
    *("model=tiny_gpt2", "model.batch_size=4", "runtime.max_batched_tokens=32", "data.key_column=id"),
    *("decoding.do_sample=true", "decoding.max_new_tokens=60", "launch.max_restarts=2"),
)


NUM_ROWS = 120  # seconds of work: the other replica has not done all of it before a killed rank is back


class Job:
    """`mindbatch batch` over one dataset, whose processes a test ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        rows = [{"id": f"row-{n}", "prompt": f"Count from {n % 9}: one, two,"} for n in range(NUM_ROWS)]
        folder.mkdir()
        (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))

    @contextmanager
    def started(self, *settings: str) -> Iterator[subprocess.Popen[str]]:
        command = [MINDBATCH, "batch", f"data.path={self.folder}/rows.jsonl", f"output.dir={self.folder}/run"]
        with subprocess.Popen(
            [*command, *SETTINGS, *settings],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=heed_signals,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def wait_for_rows(self, process: subprocess.Popen[str]) -> dict[str, int]:
        """Until more rows are safe than before; the ranks by name."""
        before = self._ledger_bytes()
        wait_for(lambda: self._ledger_bytes() > before or process.poll() is not None, LONGEST)
        assert process.poll() is None, process.communicate()
        return ranks_of(process)

    def _ledger_bytes(self) -> int:
        ledger = self.folder / "run" / "ledger.jsonl"
        return ledger.stat().st_size if ledger.exists() else 0

    def results(self) -> bytes:
        return (self.folder / "run" / "results.jsonl").read_bytes()


def ranks_of(process: subprocess.Popen[str]) -> dict[str, int]:
    """The rank processes of a command, by name."""
    return {name: process for process, name in descendants(process.pid).items() if name}


def unbroken(folder: Path, *settings: str) -> bytes:
    """The results of a run that nobody disturbed."""
    job = Job(folder)
    with job.started(*settings) as process:
        assert process.wait(LONGEST) == 0
    return job.results()


def test_a_rank_is_killed_and_the_command_interrupted_and_killed(tmp_path: Path) -> None:
    job = Job(tmp_path / "job")
    with job.started("parallel.data_parallel=2") as process:
        ranks = job.wait_for_rows(process)
        assert ranks.keys() == {"rank_0", "rank_1"}
        os.kill(ranks["rank_1"], signal.SIGKILL)
        wait_for(lambda: ranks_of(process).get("rank_1") not in (None, ranks["rank_1"]), LONGEST)
        tree = {*descendants(process.pid)}
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=LONGEST)[1]
    assert process.returncode == 130
    assert "mindbatch: rank 1 ended with signal 9; started again (1 of 2 times)\n" in said
    assert f"of {NUM_ROWS} rows done; the same command resumes\n" in said
    assert are_gone(tree, SECONDS_TO_END)
    with job.started("parallel.data_parallel=2") as process:
        job.wait_for_rows(process)
        tree = {*descendants(process.pid)}
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert are_gone(tree, SECONDS_TO_END)
    with job.started() as process:
        assert process.wait(LONGEST) == 0
    assert job.results() == unbroken(tmp_path / "unbroken")


@pytest.mark.parametrize("weights", ["model.dtype=bfloat16", "model.quantization=int8"])
def test_a_rank_of_rounded_weights_is_killed(tmp_path: Path, weights: str) -> None:
    job, settings = Job(tmp_path / "job"), (weights, "parallel.model_parallel=2")
    with job.started(*settings) as process:
        os.kill(job.wait_for_rows(process)["rank_1"], signal.SIGKILL)
        said = process.communicate(timeout=LONGEST)[1]
        assert process.returncode == 0, said
    assert "rank 1 ended with signal 9; started again (1 of 2 times)" in said
    assert job.results() == unbroken(tmp_path / "unbroken", *settings)


@pytest.mark.on_demand
def test_two_by_two_ranks_that_are_killed_stopped_and_whose_command_is_killed(tmp_path: Path) -> None:
    settings = ("parallel.data_parallel=2", "parallel.model_parallel=2")
    job = Job(tmp_path / "job")
    with job.started(*settings) as process:
        job.wait_for_rows(process)
        tree = {*descendants(process.pid)}
        process.kill()
        process.wait()
        assert are_gone(tree, SECONDS_TO_END)
    with job.started(*settings, "launch.hang_seconds=10") as process:
        os.kill(job.wait_for_rows(process)["rank_3"], signal.SIGKILL)
        os.kill(job.wait_for_rows(process)["rank_0"], signal.SIGSTOP)
        said = process.communicate(timeout=LONGEST)[1]
        assert process.returncode == 0, said
        assert "rank 3 ended with signal 9; started again (1 of 2 times)" in said
        assert "stopped): has not been heard from for 10 s" in said
    assert job.results() == unbroken(tmp_path / "unbroken", "parallel.model_parallel=2")
