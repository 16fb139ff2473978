"""Cores that a process may use, and what is said of more threads than that."""

from pathlib import Path

import pytest

from mindbatch.config import machine as processors
from mindbatch.config.machine import granted_cores, thread_notes


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "250000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/a\n", {"a/cpu.max": "max 100000\n"}, None),
        ("0::/a\n", {"a/cpu.max": "nonsense"}, None),
        ("0::/a\n", {"a/cpu.max": "100000 0"}, None),
        (
            "3:cpu,cpuacct:/job\n2:memory:/job\n",
            {"cpu/job/cpu.cfs_quota_us": "400000\n", "cpu/job/cpu.cfs_period_us": "100000\n"},
            4,
        ),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ("", {}, None),
    ],
)
def test_control_groups_grant_cores(
    groups: str, files: dict[str, str], cores: int | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    (tmp_path / "own").write_text(groups)
    assert granted_cores(tmp_path / "own", tmp_path / "root") == cores


@pytest.mark.parametrize(("granted", "cores"), [(None, 4), (3, 3), (64, 4)])
def test_cores_are_those_that_are_bound_and_granted(
    granted: int | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processors.os, "sched_getaffinity", lambda pid: {0, 2, 4, 6})
    monkeypatch.setattr(processors, "granted_cores", lambda: granted)
    assert processors.usable_cores() == cores


def test_more_threads_than_cores_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "usable_cores", lambda: 4)
    assert [*thread_notes(None), *thread_notes(4), *thread_notes(2, processes=2)] == []
    (line,) = thread_notes(99)
    assert line.startswith("runtime.num_threads=99: 4 cores are there, ")
    (line,) = thread_notes(4, processes=2)
    assert line.startswith("runtime.num_threads=4 for each of 2 processes: 4 cores are there, ")
