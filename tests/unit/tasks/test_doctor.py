"""The doctor: what it reads from the system, and its answer without MindSpore; test_wheel.py runs it."""

import json
import sys
from pathlib import Path

import pytest

from mindbatch.config.machine import memory
from mindbatch.io.installation import missing
from mindbatch.tasks import doctor
from mindbatch.tasks.doctor import DoctorConfig

CPUINFO = """processor\t: 0
model name\t: Some Processor @ 3GHz
flags\t\t: fpu avx2 avx512f avx512_bf16 amx_tile
"""
MEMINFO = "MemTotal:       2048 kB\nMemFree:        1 kB\nMemAvailable:   1024 kB\nHugePages_Total:       0\n"


def test_processor_and_flags(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(CPUINFO)
    assert doctor.processor(file) == "Some Processor @ 3GHz"
    assert doctor.processor_flags(file) == ["avx2", "avx512f", "avx512_bf16", "amx_tile"]
    file.write_text("processor: 0\nFeatures : fp asimd bf16\n")
    assert doctor.processor_flags(file) == ["asimd", "bf16"]


def test_memory_and_the_limit_of_a_container(tmp_path: Path) -> None:
    meminfo, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    meminfo.write_text(MEMINFO)
    assert memory(meminfo, limit) == {"total": 2048 * 1024, "available": 1024 * 1024}
    limit.write_text("max\n")
    assert "limit" not in memory(meminfo, limit)
    limit.write_text("4096\n")
    assert memory(meminfo, limit)["limit"] == 4096


@pytest.mark.parametrize(
    ("groups", "file"),
    [
        ("4:cpu,memory:/job/step\n2:cpu:/\n0::/other\n", "memory/job/memory.limit_in_bytes"),
        ("0::/job/step\n", "job/step/memory.max"),
        ("0::/job/step\n", "job/memory.max"),
    ],
)
def test_the_limit_of_a_control_group_and_of_those_above(tmp_path: Path, groups: str, file: str) -> None:
    meminfo, own, root = tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "groups"
    meminfo.write_text(MEMINFO)
    own.write_text(groups)
    for name in ("memory/job/step/memory.limit_in_bytes", file):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{2**63 - 4096}\n" if name != file else "4096\n")
    assert memory(meminfo, root / "memory.max", own)["limit"] == 4096
    (root / file).write_text(f"{2**63 - 4096}\n")
    assert "limit" not in memory(meminfo, root / "memory.max", own)


def test_a_system_without_these_files(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert doctor.processor(missing)
    assert doctor.processor_flags(missing) == []
    assert memory(missing, missing) == {}


def test_compilers_are_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.compilers() == {"g++": None}
    compiler = tmp_path / "g++"
    for text, line in (
        ("#!/bin/sh\necho g++ 99.1\necho more\n", "g++ 99.1"),
        ("not a program", f"{compiler} does not run"),
    ):
        compiler.write_text(text)
        compiler.chmod(0o755)
        assert doctor.compilers() == {"g++": line}


def test_without_mindspore_the_doctor_says_what_for_and_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mindspore", None)
    assert doctor.run(DoctorConfig(format="json")) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    findings = json.loads(captured.out)
    assert findings["devices"] == {"CPU": True, "Ascend": False, "error": None}
    line = findings["missing"]["mindspore"]
    assert line.endswith(missing("mindspore"))


def test_a_mindspore_that_cannot_be_imported_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mindspore.py").write_text("raise OSError('libgomp.so.1: not found')")
    monkeypatch.delitem(sys.modules, "mindspore", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert doctor.run(DoctorConfig(format="json")) == 1
    sys.modules.pop("mindspore", None)
    captured = capsys.readouterr()
    assert captured.err == "mindbatch: mindspore cannot be imported: OSError: libgomp.so.1: not found\n"
    assert json.loads(captured.out)["devices"]["Ascend"] is False


def test_text_has_a_line_for_each_finding() -> None:
    findings = {"one": {"a": None, "long name": ["x", "y"]}, "two": {"b": True, "c": []}}
    assert doctor.as_text(findings) == "one\n  a          none\n  long name  x y\n\ntwo\n  b  yes\n  c  none"
