"""Real rank processes: the same bytes as one process, and none of them left."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MINDBATCH = Path(sys.executable).with_name("mindbatch")
SETTINGS = ("model=tiny_gpt2", "decoding.do_sample=true", "decoding.max_new_tokens=20", "progress=none")


def batch(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    given = [f"data.path={folder}/rows.jsonl", f"output.dir={folder}/run", *SETTINGS, *overrides]
    return subprocess.run([MINDBATCH, "batch", *given], capture_output=True, text=True, timeout=300)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    prompts = ["An increasing sequence: one,", "", "Two, three", "a\u00e9", "x" * 3000, *map(str, range(12))]
    lines = [json.dumps({"prompt": prompt}) for prompt in prompts]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    return tmp_path


def rank_processes() -> set[str]:
    """The ids of this user's rank processes."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == os.getuid() and b"rank_main" in (process / "cmdline").read_bytes():
                found.add(process.name)
        except OSError:
            continue
    return found


def test_two_replicas_write_the_bytes_of_one_process(
    rows: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("one")
    (other / "rows.jsonl").write_bytes((rows / "rows.jsonl").read_bytes())
    before = rank_processes()
    one, two = batch(other), batch(rows, "parallel.data_parallel=2")
    assert (one.returncode, two.returncode) == (1, 1)  # two rows cannot be run
    for name in ("results.jsonl", "errors.jsonl"):
        assert (rows / "run" / name).read_bytes() == (other / "run" / name).read_bytes()
    assert two.stderr == one.stderr
    assert rank_processes() <= before
