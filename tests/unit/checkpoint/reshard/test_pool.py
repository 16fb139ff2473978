"""Jobs done by other processes, whatever their size."""

import subprocess
import sys
from pathlib import Path

import pytest

SESSION = """
import sys
from pathlib import Path
from mindbatch.checkpoint.formats.stored import Extent
from mindbatch.checkpoint.reshard.job import Job, Writing
from mindbatch.checkpoint.reshard.pool import do_jobs
from mindbatch.checkpoint.reshard.pool import WRITE
from mindbatch.storage import Storage

COUNT = 5000
def writing(number):
    return Writing("file", f"tensor_{number}_" + "x" * 100, "U8", (1,), (Extent(number, 1),), ())
jobs = [Job(str(first), {}, tuple(map(writing, range(first, first + COUNT)))) for first in range(6)]
print(sum(len(done.written) for done in do_jobs(WRITE, jobs, Path(sys.argv[1]), 2, Storage())))
"""


@pytest.mark.slow
def test_jobs_and_answers_larger_than_a_pipe_are_passed_on(tmp_path: Path) -> None:
    """Thousands of ranks: neither side may wait for the other to read. A process, for it would hang else."""
    (tmp_path / "file").write_bytes(b"\1" * 5006)
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert (done.stdout.strip(), done.stderr) == ("30000", "")
    assert (tmp_path / "file").read_bytes() == bytes(5005) + b"\1"
