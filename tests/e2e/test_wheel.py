"""What is built for others: the wheel runs anywhere, even without a compiler, and the sdist holds all."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from command_line import CommandLine
from package_sources import FILES, SOURCES, copy_of_the_sources, without_optimizing

pytestmark = pytest.mark.builds

COUNTED = "An increasing sequence: one,"
TRAINING = "examples/training"  # only checkouts have it
MAIN = "from mindbatch.cli import main"


def build_wheel(sources: Path, **environment: str) -> Path:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*pip, "--wheel-dir", str(sources / "dist"), str(sources)],
        env=os.environ | environment,
        capture_output=True,
        check=True,
    )
    (wheel,) = (sources / "dist").glob("*.whl")
    return wheel


def install(wheel: Path, target: Path) -> dict[str, str]:
    """Installs into a folder of its own; returns the environment that finds it before anything else."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
    subprocess.run([*pip, str(wheel)], capture_output=True, check=True)
    return {"PYTHONPATH": str(target)}


def findings(
    command: CommandLine, environment: dict[str, str], *, kernels: bool = True
) -> dict[str, dict[str, Any]]:
    """What `doctor` says; the same process then goes on counting with the shipped model.

    kernels: whether they are there; else `generate` says once that they are not, and why.
    """
    generate = ["generate", "model=tiny_gpt2", f"prompts=[{COUNTED!r}]", "decoding.max_new_tokens=1"]
    result = subprocess.run(
        [sys.executable, "-c", f"{MAIN}; main(['doctor', 'format=json']); main({generate!r})"],
        cwd=command.here,
        env={"PATH": os.environ["PATH"], "HOME": str(command.home), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    notes = [] if kernels else ["mindbatch: the C++ kernels are not built: no C++ compiler worked"]
    assert [line[: len(note)] for line, note in zip(result.stderr.splitlines(), notes, strict=True)] == notes
    answer, end, continued = result.stdout.rpartition("}\n")
    assert continued == f"{COUNTED} two\n"
    assert not os.listdir(command.here)
    found: dict[str, dict[str, Any]] = json.loads(answer + end)
    assert found["devices"]["CPU"] is True
    return found


def test_the_wheel_runs_from_an_empty_folder(tmp_path: Path, own_process: CommandLine) -> None:
    sources = copy_of_the_sources(tmp_path / "sources with spaces")
    wheel = build_wheel(sources, **without_optimizing(tmp_path))
    environment = install(wheel, tmp_path / "target")
    found = findings(own_process, environment)
    assert found["folders"]["configs_and_examples"] == str(tmp_path / "target" / "mindbatch")
    if shutil.which("g++"):
        assert found["kernels"]["attention"].startswith("native (")


def test_without_a_compiler_the_package_installs_and_runs(tmp_path: Path, own_process: CommandLine) -> None:
    wheel = build_wheel(copy_of_the_sources(tmp_path / "sources"), PATH=str(tmp_path / "nothing"))
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if name.endswith(".so") or TRAINING in name]
    assert "mindbatch/examples/tiny_gpt2/model.safetensors" in names
    environment = install(wheel, tmp_path / "target")
    kernels = findings(own_process, environment, kernels=False)["kernels"]["attention"]
    assert kernels.startswith("not built: no C++ compiler")


def test_the_source_distribution_is_complete(tmp_path: Path) -> None:
    sources = copy_of_the_sources(tmp_path / "sources")
    build = "from setuptools.build_meta import build_sdist; build_sdist('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=sources, capture_output=True, check=True)
    (archive,) = (sources / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as files:
        held = {name.partition("/")[2] for name in files.getnames()}
    for folder in (*SOURCES[:2], "pipeline/mindbatch"):
        wanted = {str(path.relative_to(sources)) for path in (sources / folder).rglob("*") if path.is_file()}
        assert {name for name in wanted if not name.startswith(TRAINING)} <= held
    assert not [name for name in held if TRAINING in name]
    assert set(FILES) <= held
