"""Processes are started by `children`, which knows how they end; where another module does, it says why."""

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "pipeline/mindbatch"
STARTS = re.compile(
    r"\bsubprocess\.(Popen|run|call|check_\w+|get\w+)\(|\bos\.(fork\w*|system|popen|posix_spawn\w*|spawn\w+)\("
    r"|\bProcessPoolExecutor\b|\bcreate_subprocess_\w+|\bmultiprocessing\.(Process|Pool|\w*[cC]ontext)\b"
    r"|\bfrom (subprocess|os|pty|multiprocessing\.\w*(pool|context)) import\b"
    r"|\bfrom multiprocessing import (?!(AuthenticationError|Pipe)$)",
    re.MULTILINE,
)
# By module, why it does not ask `children`. To become another program (os.exec) starts no process.
ALLOWED = {
    "io/children.py": "starts them for all others",
    "ascend_simulation/process.py": "forks ranks, so that MindSpore is imported once for all of them",
    "launch/scripts/keeper.py": "the program is its own child, whose signals and descendants it looks after",
}


def test_no_other_module_starts_processes() -> None:
    starting = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if STARTS.search(path.read_text())
    }
    assert starting == {*ALLOWED}


@pytest.mark.parametrize(
    ("line", "starts"),
    [
        ("done = subprocess.run(command, check=False)", True),
        ("process: subprocess.Popen[bytes]", False),
        ("process = os.fork()", True),
        ("os.posix_spawn(path, [path], {})", True),
        ("os.execvp(path, [path])", False),
        ("from subprocess import run", True),
        ("from multiprocessing import Pipe", False),
        ("from multiprocessing import Pipe, Process", True),
        ("from multiprocessing.connection import Connection", False),
        ("with concurrent.futures.ProcessPoolExecutor() as pool:", True),
    ],
)
def test_what_starts_a_process(line: str, starts: bool) -> None:
    assert bool(STARTS.search(f"import os\n{line}\n")) == starts
