"""Child processes: what they are asked and answer, their limits, when they end; who may start them."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from child_functions import answer_once, say_who_and_wait, serve_anything
from ended_processes import is_gone
from import_traps import LAID, lay_traps
from mindbatch.io import children
from mindbatch.io.child_main import main
from mindbatch.io.children import (
    AnsweringProcess,
    Child,
    ChildDied,
    Finished,
    Limits,
    ProcessorTimeUsedUp,
    run,
)
from mindbatch.io.storage import StorageError

TESTS = str(Path(__file__).parents[1] / "processes")
LIMITS = Limits(seconds=60.0, memory_bytes=1 << 30)
PARENT = """
import os, signal, sys, threading
from child_functions import say_who_and_wait, serve_anything
from mindbatch.io.children import AnsweringProcess, Child, Limits
asked = AnsweringProcess(serve_anything, Limits(seconds=600.0, memory_bytes=1 << 30))
who = asked.ask(b'["who"]', 100)
threading.Thread(target=asked.ask, args=(b'["compute", 600]', 100), daemon=True).start()
child = Child(say_who_and_wait)
print(who, child.connection.recv(), flush=True)
"""


@pytest.fixture
def asked() -> Any:
    process = AnsweringProcess(serve_anything, LIMITS)
    yield process
    process.close()


def ask(process: AnsweringProcess, *request: object, most_bytes: int = 1000) -> Any:
    return process.ask(json.dumps(request).encode(), most_bytes)


def test_an_interrupt_is_left_to_the_parent() -> None:
    child = Child(say_who_and_wait)
    os.kill(child.connection.recv(), signal.SIGINT)
    child.connection.send("on")
    assert child.death() == "exit code 0"
    child.end()


def test_it_is_ended_whatever_it_does() -> None:
    child = Child(say_who_and_wait)
    child.connection.recv()
    child.end()
    assert child.process.poll() == -signal.SIGKILL


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    "ending", ["", "sys.exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"], ids=["normal", "error", "killed"]
)
def test_none_outlives_its_parent_whatever_it_computes(ending: str) -> None:
    environment = {**os.environ, "PYTHONPATH": TESTS}
    command = [sys.executable, "-c", PARENT + ending]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    processes = [int(process) for process in done.stdout.split()]
    assert len(processes) == 2
    assert all(map(is_gone, processes))


def test_one_outlives_the_thread_that_started_it(asked: AnsweringProcess) -> None:
    first: list[int] = []
    thread = threading.Thread(target=lambda: first.append(ask(asked, "who")))
    thread.start()
    thread.join()
    assert ask(asked, "who") == first[0]


def test_a_killed_one_is_replaced(asked: AnsweringProcess) -> None:
    first = ask(asked, "who")
    os.kill(first, signal.SIGKILL)
    assert is_gone(first)
    assert ask(asked, "who") != first
    asked.close()
    assert ask(asked, "echo", "again") == "again"


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (["leave", 3], "its process ended with exit code 3, most likely out of memory (limit 1024 MiB)"),
        (["take", 2 << 30], "out of memory"),
        (["long", 2000], "its process answers more than it may"),
    ],
)
def test_one_that_dies_at_work_says_how(asked: AnsweringProcess, request_: list[object], said: str) -> None:
    with pytest.raises(ChildDied) as caught:
        ask(asked, *request_)
    assert said in str(caught.value)
    assert ask(asked, "echo", 1) == 1


def test_one_that_cannot_start_is_named() -> None:
    with pytest.raises(ChildDied, match=r"did not start \(.*: exit code 1\)"):
        ask(AnsweringProcess(answer_once, LIMITS), "echo", 1)


def test_a_request_has_so_much_processor_time() -> None:
    process = AnsweringProcess(serve_anything, Limits(seconds=0.3, memory_bytes=1 << 30))
    for _ in range(3):  # each has it anew
        assert ask(process, "compute", 0.01) == 0.01
    with pytest.raises(ProcessorTimeUsedUp):
        ask(process, "compute", 600)
    assert ask(process, "echo", 1) == 1
    process.close()


@pytest.mark.slow
def test_no_clock_on_the_wall_ends_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped for longer than its processor time, then goes on."""
    process = AnsweringProcess(serve_anything, Limits(seconds=0.5, memory_bytes=1 << 30))
    child = ask(process, "who")
    answers: list[object] = []
    os.kill(child, signal.SIGSTOP)
    monkeypatch.setattr(children, "_TICK_SECONDS", 0.01)
    thread = threading.Thread(target=lambda: answers.append(ask(process, "echo", "late")))
    thread.start()
    thread.join(1.2)
    assert thread.is_alive()
    os.kill(child, signal.SIGCONT)
    thread.join()
    assert answers == ["late"]
    process.close()


@pytest.mark.slow
def test_one_that_sleeps_for_ever_is_given_up(
    monkeypatch: pytest.MonkeyPatch, asked: AnsweringProcess
) -> None:
    ask(asked, "who")
    monkeypatch.setattr(children, "_TICK_SECONDS", 0.01)
    with pytest.raises(ChildDied, match="does nothing any more"):
        ask(asked, "sleep")
    assert ask(asked, "echo", 1) == 1


def test_threads_get_their_own_answers(asked: AnsweringProcess) -> None:
    right: list[bool] = []

    def work(name: str) -> None:
        right.extend(ask(asked, "echo", f"{name}{i}") == f"{name}{i}" for i in range(50))

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 200


def test_a_forked_process_has_a_child_of_its_own(asked: AnsweringProcess) -> None:
    """Even where another thread held the lock at the moment of the fork."""
    first = ask(asked, "who")
    with asked._lock:
        forked = os.fork()
        if not forked:
            code = 1
            try:
                second = ask(asked, "who")
                asked.close()
                code = 0 if second != first and is_gone(second) else 2
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    assert ask(asked, "who") == first


def shell(script: str, **limits: Any) -> Finished:
    return run(["/bin/sh", "-c", script], **{"seconds": 60.0, **limits})


def test_a_program_is_run_to_its_end() -> None:
    assert shell("cat; echo one; echo two >&2; exit 3") == Finished(3, "one\n", "two\n")
    assert shell("kill -9 $$").code == -signal.SIGKILL
    assert len(shell("head -c 1000000 /dev/zero >&2; head -c 1000000 /dev/zero").output) == 1_000_000
    with pytest.raises(FileNotFoundError):
        run(["/no/such/program"], 60.0)


def test_a_program_that_writes_too_much_is_killed() -> None:
    found = shell("yes & yes >&2", max_bytes=1 << 18)
    assert found.code == -signal.SIGKILL
    assert 1 << 18 <= len(found.output) + len(found.errors) <= (1 << 18) + 2 * children._CHUNK


@pytest.mark.parametrize("closes", ["", ">&- 2>&-"])
def test_a_program_that_does_not_end_is_killed_with_its_session(closes: str, tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        shell(f"sleep 1000 & echo $! > {tmp_path}/sleeper; exec sleep 1000 {closes}", seconds=1.0)
    assert is_gone(int((tmp_path / "sleeper").read_text()))


PROGRAM = """
import json, sys
sys.path[:0] = {paths!r}
from mindbatch.io import children
from mindbatch.ascend_simulation import process
from mindbatch.prompts.chat import ChatTemplates
from mindbatch.decoding.grammar import Grammar, GrammarProcess
sys.path[:0] = ["", {folder!r}]
assert ChatTemplates({{"default": "text"}}).render([]) == "text"
print(GrammarProcess().tried(Grammar("regex", "a")).error)
job = {{"memory_bytes": 1 << 30, "module": "absent", "packages": "/absent", "import_path": "/absent"}}
child = children.Child(process.run_job)
child.connection.send_bytes(json.dumps(job).encode())
print(child.connection.recv_bytes())
"""


@pytest.mark.slow
def test_nothing_of_the_current_folder_is_executed(tmp_path: Path) -> None:
    lay_traps(tmp_path)
    program = PROGRAM.format(paths=sys.path, folder=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], cwd=tmp_path, capture_output=True, check=False
    )
    assert not (tmp_path / LAID).exists(), (tmp_path / LAID).read_text()
    assert done.returncode == 0, done.stderr
    *said, failure = done.stdout.splitlines()
    assert said == [b"None"]
    assert b"No module named" in failure


def test_the_package_is_found_although_it_lies_in_the_current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(children.__file__).parents[2])
    todo: dict[str, list[str]] = json.loads(children.command(main)[-1])
    assert todo["import_path"][-1] == os.getcwd()
    assert os.getcwd() not in todo["import_path"][:-1]


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
    "launch/scripts/reaper.py": "the program is its own child, whose signals and descendants it looks after",
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


@pytest.mark.parametrize(("number", "kind"), [(errno.EMFILE, StorageError), (errno.EACCES, ChildDied)])
def test_a_request_is_not_to_blame_for_what_the_system_lacks(
    number: int, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    process = AnsweringProcess(serve_anything, LIMITS)
    monkeypatch.setattr(process, "_start", fail)
    with pytest.raises(kind, match=os.strerror(number)):
        process.ask(b"[]", 100)
