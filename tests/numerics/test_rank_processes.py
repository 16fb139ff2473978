"""Two real processes, each with the rank folder that is its own, give the logits of the whole model.

On demand: tests/distributed/test_tensor_parallel.py compares what the engine makes of them, always.
"""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from model_folders import descriptions, write_folder

from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.loading.first_logits import first_logits
from mindbatch.models.registry import describe
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.task import run

pytestmark = [pytest.mark.slow, pytest.mark.on_demand]

PROGRAM = Path(__file__).with_name("rank_process.py")
RANKS = 2


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def run_ranks(folder: Path, out: Path) -> None:
    """Runs a process for each rank; none of them outlives this."""
    scripts = Path(sys.executable).parent
    options = [f"--worker_num={RANKS}", f"--local_worker_num={RANKS}", f"--master_port={free_port()}"]
    process = subprocess.Popen(
        [str(scripts / "msrun"), *options, f"--log_dir={out / 'log'}", "--join=True"]
        + [str(PROGRAM), str(folder), str(RANKS), str(out)],
        env=os.environ | {"PATH": f"{scripts}:{os.environ['PATH']}"},
        cwd=out,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = process.wait(timeout=300)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert code == 0, (out / "log/worker_0.log").read_text(errors="replace")[-3000:]


@pytest.mark.parametrize("case", ["llama", "gpt2"])
def test_logits_of_two_processes_are_those_of_the_whole(case: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "whole", descriptions()[case])
    config = ReshardConfig(source=str(tmp_path / "whole"))
    config.target.dir, config.target.model_parallel = str(tmp_path / "cut"), RANKS
    assert run(config) == 0
    (tmp_path / "out").mkdir()
    run_ranks(tmp_path / "cut", tmp_path / "out")
    whole = ModelFolder(tmp_path / "whole")
    expected = first_logits(describe(whole.config), whole)
    for rank in range(RANKS):
        found = np.load(tmp_path / f"out/{rank}.npy")
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
        assert (found.argmax(-1) == expected.argmax(-1)).all()
