"""The child for a layout, played by stand-ins: whatever goes wrong is one line, and nothing is left of it."""

import os
import select
import stat
from pathlib import Path

import pytest

from mindbatch.backends.failure import BackendError
from mindbatch.backends.layout_process import LayoutProcess, Limits, NotJoined

NEVER, SOON = 100.0, 0.2
STARTED = """echo '{"event": "started", "rank": 0}'"""
DONE = """echo '{"event": "done"}'"""


def joined(rank: int) -> str:
    return f"""echo '{{"event": "joined", "rank": {rank}}}'"""


def stand_in(folder: Path, *lines: str, num_ranks: int = 2) -> LayoutProcess:
    """A child that is a shell script; it says its process id first, in the file `process`."""
    path = folder / "worker"
    path.write_text("\n".join(["#!/bin/sh", "echo $$ > process", *lines]))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return LayoutProcess([str(path)], folder, os.environ, num_ranks)


def failure(process: LayoutProcess, limits: Limits | None = None) -> BackendError:
    with pytest.raises(BackendError) as caught:
        process.run(limits or Limits(NEVER, NEVER))
    assert len(caught.value.faults) == 1
    assert "\n" not in str(caught.value)
    return caught.value


def is_gone(folder: Path, name: str = "process") -> bool:
    """Whether a process has ended; one that is being ended is waited for."""
    try:
        process = os.pidfd_open(int((folder / name).read_text()))
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], NEVER)[0])
    finally:
        os.close(process)


def test_success_is_what_the_child_reports(tmp_path: Path) -> None:
    stand_in(tmp_path, STARTED, joined(1), joined(0), "touch result", DONE).run(Limits(NEVER, NEVER))
    assert (tmp_path / "result").exists()


def test_the_child_gets_the_id_of_its_parent(tmp_path: Path) -> None:
    stand_in(tmp_path, "echo $1 > parent", DONE).run(Limits(NEVER, NEVER))
    assert (tmp_path / "parent").read_text().strip() == str(os.getpid())


def test_what_is_no_report_is_passed_over(tmp_path: Path) -> None:
    stand_in(tmp_path, "echo hello", "echo '[1]'", "echo '{'", DONE).run(Limits(NEVER, NEVER))


def test_a_reported_failure_names_the_rank(tmp_path: Path) -> None:
    report = r"""printf '%s\n' '{"event": "failed", "rank": 3, "error": "no  such\n operator"}'"""
    error = failure(stand_in(tmp_path, STARTED, report, "sleep 3600"))
    assert str(error) == "MindSpore's layout failed on rank 3: no such operator"
    assert is_gone(tmp_path)


def test_of_several_failures_the_first_counts(tmp_path: Path) -> None:
    reports = [f"""echo '{{"event": "ended", "rank": {rank}, "error": "e{rank}"}}'""" for rank in (-1, 0)]
    assert str(failure(stand_in(tmp_path, *reports))) == "MindSpore's layout failed on the scheduler: e-1"


def test_a_crash_is_told_with_the_last_line_of_the_log(tmp_path: Path) -> None:
    error = failure(
        stand_in(tmp_path, STARTED, "echo first >&2", "echo '  the   last ' >&2", "kill -SEGV $$")
    )
    assert str(error) == "the process for the layout was ended by signal 11; its last line: the last"


def test_an_end_without_success_is_none(tmp_path: Path) -> None:
    error = failure(stand_in(tmp_path, STARTED, joined(0), joined(1), "exit 0"))
    assert str(error) == "the process for the layout ended with code 0"


def test_ranks_that_do_not_find_each_other_are_worth_another_try(tmp_path: Path) -> None:
    process = stand_in(tmp_path, STARTED, joined(1), "sleep 3600")
    error = failure(process, Limits(SOON, NEVER))
    assert isinstance(error, NotJoined)
    assert str(error) == "1 of 2 processes found each other in 0.2 s"
    assert is_gone(tmp_path)


def test_a_child_that_hangs_later_is_told_with_the_option(tmp_path: Path) -> None:
    process = stand_in(tmp_path, STARTED, joined(0), joined(1), "sleep 3600")
    error = failure(process, Limits(NEVER, SOON))
    assert not isinstance(error, NotJoined)
    assert str(error) == "no layout after 0.2 s; layout.timeout gives it longer"


def test_ranks_that_have_found_each_other_may_take_longer(tmp_path: Path) -> None:
    stand_in(tmp_path, STARTED, joined(0), joined(1), "sleep 0.5", DONE).run(Limits(SOON, NEVER))


def test_a_child_that_hangs_before_it_starts_is_not_looking_for_others(tmp_path: Path) -> None:
    assert not isinstance(failure(stand_in(tmp_path, "sleep 3600"), Limits(NEVER, SOON)), NotJoined)


def test_children_of_the_child_are_ended_even_those_that_ignore_signals(tmp_path: Path) -> None:
    grandchild = "(trap '' TERM INT HUP; sh -c 'echo $$ > child; sleep 3600') &"
    waiting = "while [ ! -s child ]; do :; done"
    stand_in(tmp_path, grandchild, waiting, DONE).run(Limits(NEVER, NEVER))
    assert is_gone(tmp_path)
    assert is_gone(tmp_path, "child")


def test_an_interrupt_ends_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = stand_in(tmp_path, STARTED, "sleep 3600")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mindbatch.backends.layout_process._note", interrupt)
    with pytest.raises(KeyboardInterrupt):
        process.run(Limits(NEVER, NEVER))
    assert is_gone(tmp_path)


def test_a_child_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    process = LayoutProcess([str(tmp_path / "nothing")], tmp_path, os.environ, 1)
    assert str(failure(process)) == f"{tmp_path}/nothing: cannot be started (No such file or directory)"


def test_success_does_not_wait_for_the_child_to_end(tmp_path: Path) -> None:
    stand_in(tmp_path, DONE, "sleep 3600").run(Limits(NEVER, NEVER))
    assert is_gone(tmp_path)
