"""Processes of a job: their logs, how their ends are told, and that none is left."""

import os
import select
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from child_functions import (
    die_with_a_child_left,
    flood,
    say_and_leave,
    say_and_wait,
    stop_unwilling_to_end,
    supervise,
)
from ended_processes import is_gone, wait_for
from mindbatch.io.children import command
from mindbatch.io.errors import MindBatchError
from mindbatch.launch import process_log, supervisor
from mindbatch.launch.supervisor import EndedProcess, Supervisor, process_state


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Supervisor]:
    made = Supervisor(tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize("code", [0, 3])
def test_an_end_is_told_once_with_the_last_lines(processes: Supervisor, tmp_path: Path, code: int) -> None:
    said = "first\nsecond\n\n[INFO] DISTRIBUTED(1,2): said whatever happens"
    processes.start("rank_1", command(say_and_leave, said, str(code)), os.environ)
    ended = wait_for(processes.ended)
    assert ended == [EndedProcess("rank_1", f"exit code {code}", ("first", "second"))]
    assert processes.ended() == []
    log = tmp_path / "rank_1.log"
    assert log.read_text() == f"{said}\n"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_what_a_killed_process_has_left_is_killed(processes: Supervisor) -> None:
    processes.start("rank_0", command(die_with_a_child_left), os.environ)
    [ended] = wait_for(processes.ended)
    assert ended.exit_reason == "signal 9"
    assert is_gone(int(ended.last_lines[0]))


def test_some_are_ended_and_started_anew(processes: Supervisor, tmp_path: Path) -> None:
    for name in ("rank_0", "rank_1"):
        processes.start(name, command(say_and_wait, "first"), os.environ)
    wait_for(lambda: processes.last_lines("rank_1"))
    first, other = processes.process_id("rank_1"), processes.process_id("rank_0")
    processes.end(["rank_1"])
    assert processes.names == ["rank_0"]
    processes.start("rank_1", command(say_and_wait, "second"), os.environ)
    wait_for(lambda: processes.last_lines("rank_1"))
    assert processes.process_id("rank_1") != first
    assert processes.process_id("rank_0") == other
    assert processes.ended() == []  # who was ended is not told
    assert (tmp_path / "rank_1.log").read_text() == "second\n"
    assert (tmp_path / "rank_1.log.1").read_text() == "first\n"


def test_stopped_ones_that_take_no_signal_are_ended(
    processes: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "SECONDS_TO_END", 0.05)
    processes.start("rank_0", command(stop_unwilling_to_end), os.environ)
    pids = [int(pid) for pid in wait_for(lambda: processes.last_lines("rank_0"))[0].split()]
    wait_for(lambda: process_state(pids[0]) == "stopped")
    processes.end()
    assert all(map(is_gone, pids))
    processes.end()


def test_none_outlives_a_parent_that_was_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen([*command(supervise, str(tmp_path)), str(os.getpid())], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent.stdout:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 3
    parent.kill()
    parent.wait()
    assert all(map(is_gone, pids))


def test_a_log_is_bounded(processes: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_log, "MAX_BYTES", 1 << 20)
    processes.start("rank_0", command(flood, "5"), os.environ)
    [ended] = wait_for(processes.ended)
    assert ended.last_lines[-1] == "the end"
    assert {len(line) for line in ended.last_lines[:-1]} == {process_log.LONGEST_LINE}
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.keys() == {"rank_0.log", "rank_0.log.1"}
    assert max(sizes.values()) <= 1 << 20


def test_a_line_without_end_is_bounded(tmp_path: Path) -> None:
    log = process_log.ProcessLog(tmp_path / "rank_0.log")
    for _ in range(100):
        log.write(b"x" * 10_000)
    log.close()
    assert {len(line) for line in log.last_lines()} == {process_log.LONGEST_LINE}


def test_a_full_disk_ends_the_log_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = process_log.ProcessLog(tmp_path / "rank_0.log")

    def full(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        log.write(b"one\n")
    log.write(b"two\n")
    log.close()
    ends, *lines = log.last_lines()
    assert "No space left" in ends
    assert lines == ["one", "two"]


def test_lines_are_shown_after_their_process_and_act_on_nothing(
    processes: Supervisor, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = process_log.ProcessLog(tmp_path / "rank_0.log", "rank 0")
    log.write(b"caf\xc3")
    log.write(b"\xa9\x1b[2J\rrank 1: forged\nnot ended")
    log.close()
    assert capfd.readouterr().err == ("rank 0: caf\xe9\\x1b[2J\\rrank 1: forged\nrank 0: not ended\n")


def test_no_link_is_followed_and_nothing_else_written_over(processes: Supervisor, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    (tmp_path / "rank_0.log").symlink_to(other)
    os.mkfifo(tmp_path / "rank_1.log")
    for name, found in (("rank_0", "symbolic link"), ("rank_1", "not a regular file")):
        with pytest.raises(MindBatchError, match=rf"{name}\.log.*{found}"):
            processes.start(name, command(say_and_wait, "on"), os.environ)
    assert other.read_text() == "mine"
    assert processes.names == []


def test_what_a_process_does_is_seen() -> None:
    program = "import sys; print(flush=True); sys.stdin.read(1)\nwhile True: pass"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        select.select([process.stdout], [], [])
        wait_for(lambda: process_state(process.pid) == "sleeping")
        process.stdin.write(b"x")
        process.stdin.flush()
        wait_for(lambda: process_state(process.pid) == "running")
        os.kill(process.pid, signal.SIGSTOP)
        wait_for(lambda: process_state(process.pid) == "stopped")
        process.kill()
        wait_for(lambda: process_state(process.pid) is None)
