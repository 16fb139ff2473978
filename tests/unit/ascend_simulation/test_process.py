"""The process of the simulation: its reports, its limits, and that nothing is left of it."""

import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import simulated_functions
from mindbatch.ascend_simulation import process
from mindbatch.ascend_simulation.process import simulate
from mindbatch.ascend_simulation.stubs import AscendPlugin
from mindbatch.io.errors import BackendError


@pytest.fixture(autouse=True)
def _no_mindspore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of these tests load no MindSpore: stubs and plugin are folders only."""
    monkeypatch.setattr(process, "find_plugin", lambda: AscendPlugin("2.9.0", tmp_path / "lib"))
    monkeypatch.setattr(process, "stub_libraries", lambda plugin, cache: tmp_path / "stubs")
    monkeypatch.chdir(tmp_path)


def failure(reports: Iterator[Any]) -> BackendError:
    with pytest.raises(BackendError) as caught:
        list(reports)
    return caught.value


def test_reports_come_as_they_are_made() -> None:
    reports = simulate(simulated_functions.count_and_wait, "3")
    assert [next(reports) for _ in range(3)] == [0, 1, 2]
    who = next(reports)
    reports.close()  # it waits for ever
    try:
        gone = os.pidfd_open(who)
    except ProcessLookupError:
        return
    assert select.select([gone], [], [], 60.0)[0]
    os.close(gone)


def test_nothing_of_the_users_cluster_reaches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK_TABLE_FILE", "theirs")
    monkeypatch.setenv("ASCEND_HOME_PATH", "theirs")
    monkeypatch.setenv("DEVICE_NUM", "7")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/theirs")
    (found,) = simulate(simulated_functions.tell_environment)
    assert found["MS_SIMULATION_LEVEL"] == "1"
    assert not {"RANK_TABLE_FILE", "ASCEND_HOME_PATH", "DEVICE_NUM"} & {*found}
    libraries = found["LD_LIBRARY_PATH"].split(os.pathsep)
    assert libraries == [
        str(tmp_path / path)
        for path in ("stubs/cann/lib", "lib", "lib/plugin", "lib/plugin/ascend", "/theirs")
    ]


def test_what_it_writes_does_not_reach_the_current_folder(tmp_path: Path) -> None:
    (found,) = simulate(simulated_functions.write_beside)
    assert found != str(tmp_path)
    assert not Path(found).exists()
    assert [*tmp_path.iterdir()] == []


def test_an_error_is_the_line_that_says_it() -> None:
    assert failure(simulate(simulated_functions.fail, "plain")).lines == (
        "the simulation of Ascend: no such operator",
    )
    assert failure(simulate(simulated_functions.fail, "ours")).lines == (
        "the simulation of Ascend: first fault",
        "the simulation of Ascend: second fault",
    )


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("plain", "rank 0 of 2: no such operator"),
        ("ours", "rank 0 of 2: first fault\n"),
        ("killed", "rank 0 of 2: ended by signal 9"),
    ],
)
def test_ranks_are_forks(how: str, line: str) -> None:
    assert [*simulate(simulated_functions.run_ranks, "good")] == [["0", "2"], ["1", "2"]]
    reports = simulate(simulated_functions.run_ranks, how)
    assert next(reports) == ["0", "2"]
    assert f"the simulation of Ascend: {line}" in str(failure(reports)) + "\n"


def test_a_process_that_dies_is_told_with_its_last_line() -> None:
    (line,) = failure(simulate(simulated_functions.die)).lines
    assert line.startswith("the simulation of Ascend ended with exit code 7, most likely out of")
    assert line.endswith("; its last line: the end is near")


def test_limits_are_kept() -> None:
    short = failure(simulate(simulated_functions.count_and_wait, "0", seconds=0.2))
    assert str(short).startswith("the simulation of Ascend has not ended after 0.2 s")
    assert [*simulate(simulated_functions.take, str(1 << 20), memory_bytes=1 << 30)] == [1 << 20]
    (line,) = failure(simulate(simulated_functions.take, str(1 << 31), memory_bytes=1 << 30)).lines
    assert line.endswith(": MemoryError")


def test_its_messages_are_shown_when_they_are_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    [*simulate(simulated_functions.speak)]
    assert capfd.readouterr() == ("", "")
    [*simulate(simulated_functions.speak, verbose=True)]
    assert "one word\\u001b[2J" in capfd.readouterr().err
