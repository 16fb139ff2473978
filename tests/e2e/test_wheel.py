"""What is built for others: the wheels run anywhere, even without a compiler, and the sdist holds all.

scripts/build_wheels.sh builds them and runs these tests; those of dist/ are skipped without it.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from command_line import CommandLine
from package_sources import CHECKOUT, FILES, SOURCES, copy_of_the_sources, without_optimizing

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
    command: CommandLine,
    environment: dict[str, str],
    *,
    kernels: bool = True,
    python: Path = Path(sys.executable),
) -> dict[str, dict[str, Any]]:
    """What `doctor` says; the same process then goes on counting with the shipped model.

    kernels: whether they are there; else `generate` says once that they are not, and why.
    """
    generate = ["generate", "model=tiny_gpt2", f"prompts=[{COUNTED!r}]", "decoding.max_new_tokens=1"]
    result = subprocess.run(
        [str(python), "-c", f"{MAIN}; main(['doctor', 'format=json']); main({generate!r})"],
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


DIST = os.environ.get("MINDBATCH_DIST")
MACHINES = ("x86_64", "aarch64")
MOST_BYTES = 15 << 20
OLDEST_GLIBC = (2, 28)


def built(pattern: str) -> Path:
    """The one file of dist/ whose name matches."""
    if DIST is None:
        pytest.skip("scripts/build_wheels.sh runs it")
    (path,) = Path(DIST).glob(pattern)
    return path


@pytest.mark.parametrize("machine", MACHINES)
def test_a_wheel_has_everything_for_every_python_and_older_systems(machine: str) -> None:
    wheel = built(f"*-py3-none-manylinux_2_28_{machine}.whl")
    assert wheel.stat().st_size < MOST_BYTES
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
    assert {name for name in names if name.endswith(".so")} == {"mindbatch/kernels/_cpu.so"}
    assert {"mindbatch/examples/tiny_gpt2/model.safetensors", "mindbatch/kernels/csrc/settings.h"} <= names
    assert {"mindbatch/configs/generate.yaml", "mindbatch/py.typed"} <= names
    assert not [name for name in names if TRAINING in name or name.endswith((".pyc", ".o"))]
    show = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    said = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    oldest = re.search(rf'tag: "manylinux_(\d+)_(\d+)_{machine}"', " ".join(said.split()))
    assert oldest is not None, said
    assert (int(oldest[1]), int(oldest[2])) <= OLDEST_GLIBC


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the wheel of this machine as `pip install WHEEL` brings it."""
    wheel = built(f"*manylinux_2_28_{platform.machine()}.whl")
    folder = tmp_path_factory.mktemp("wheel") / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([str(folder / "bin/pip"), "install", "--quiet", str(wheel)], check=True)
    return folder


def test_the_wheel_runs_at_full_speed(environment: Path, own_process: CommandLine) -> None:
    python = environment / "bin/python"
    subprocess.run([str(python), "-m", "pip", "check"], capture_output=True, check=True)
    found = findings(own_process, {"PATH": str(python.parent)}, python=python)
    assert found["kernels"]["attention"].startswith("native (")
    assert found["folders"]["configs_and_examples"].startswith(str(environment))
    if shutil.which("g++"):
        here = findings(own_process, {"PATH": os.environ["PATH"]}, python=Path(sys.executable))
        assert found["kernels"]["attention"] == here["kernels"]["attention"]  # no instruction set is left out


def test_uvx_runs_the_wheel(tmp_path: Path) -> None:
    wheel = built(f"*manylinux_2_28_{platform.machine()}.whl")
    generate = ["generate", "model=tiny_gpt2", f"prompts=[{COUNTED!r}]", "decoding.max_new_tokens=3"]
    run = [
        str(Path(sys.executable).with_name("uvx")),
        "--python",
        sys.executable,
        "--from",
        str(wheel),
        "mindbatch",
        *generate,
    ]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == f"{COUNTED} two, three\n", done.stderr


def test_without_a_compiler_the_package_installs_and_runs(tmp_path: Path, own_process: CommandLine) -> None:
    """The name of the wheel says that it has no kernels: it is for any machine."""
    wheel = build_wheel(copy_of_the_sources(tmp_path / "sources"), PATH=str(tmp_path / "nothing"))
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if name.endswith(".so") or TRAINING in name]
    assert "mindbatch/examples/tiny_gpt2/model.safetensors" in names
    environment = install(wheel, tmp_path / "target")
    kernels = findings(own_process, environment, kernels=False)["kernels"]["attention"]
    assert kernels.startswith("not built: no C++ compiler")


def test_a_wheel_of_this_machine_says_so(tmp_path: Path, own_process: CommandLine) -> None:
    sources = copy_of_the_sources(tmp_path / "sources with spaces")
    wheel = build_wheel(sources, **without_optimizing(tmp_path))
    assert wheel.name.endswith(f"-py3-none-linux_{platform.machine()}.whl")
    environment = install(wheel, tmp_path / "target")
    found = findings(own_process, environment)
    assert found["folders"]["configs_and_examples"] == str(tmp_path / "target" / "mindbatch")
    assert found["kernels"]["attention"].startswith("native (")


def test_the_source_distribution_is_complete() -> None:
    archive = built("mindbatch-*.tar.gz")
    with tarfile.open(archive) as files:
        held = {name.partition("/")[2] for name in files.getnames()}
    for folder in (*SOURCES[:2], "pipeline/mindbatch"):
        paths = (CHECKOUT / folder).rglob("*")
        wanted = {str(path.relative_to(CHECKOUT)) for path in paths if path.is_file()}
        left_out = ("__pycache__", ".so", ".pyc", TRAINING)
        assert {name for name in wanted if not any(part in name for part in left_out)} <= held
    assert not [name for name in held if TRAINING in name]
    assert set(FILES) <= held
