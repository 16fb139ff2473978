"""The suite catches deliberate faults: each of faults.yaml, put into a copy of the checkout, fails its tests.

All of them take some minutes: pytest -m on_demand tests/faults. Whoever makes tests fewer or quicker runs it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COPIED = ("pipeline", "tests", "tools", "configs", "examples", "docs", "scripts")
COPIED_FILES = ("pyproject.toml", "setup.py", "README.md")
TESTS_FAILED = 1  # pytest's exit code; 2 and more: it could not run them
MAX_SECONDS = 600
"""Of the tests of one fault: those that wait for ever have not found it."""


@dataclass(frozen=True)
class Fault:
    """One change of one file of the package, and the files of tests that must then fail."""

    name: str
    file: str
    text: str
    becomes: str
    caught_by: tuple[str, ...]


FAULTS = [
    Fault(each["name"], each["file"], each["text"], each["becomes"], tuple(each["caught_by"]))
    for each in yaml.safe_load(Path(__file__).with_name("faults.yaml").read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_still_be_made(fault: Fault) -> None:
    content = (ROOT / fault.file).read_text(encoding="utf-8")
    assert content.count(fault.text) == 1
    compile(content.replace(fault.text, fault.becomes), fault.file, "exec")
    assert all((ROOT / path).exists() for path in fault.caught_by)


def test_faults_are_in_every_package() -> None:
    packages = {Path(fault.file).parts[2] for fault in FAULTS}
    assert packages >= {
        "architecture", "backends", "checkpoint", "config", "config_json", "dataset", "decoding", "engine",
        "evaluation", "io", "kernels", "launch", "layers", "ledger", "model_spec", "models", "parallel",
        "replicas", "run", "tasks",
    }  # fmt: skip


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, with the kernels that were built."""
    copy = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
    for name in COPIED:
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    for name in COPIED_FILES:
        shutil.copy(ROOT / name, copy / name)
    return copy


def run_tests(checkout: Path, paths: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not on_demand"]
    command = [sys.executable, "-m", "pytest", *options, *paths]
    environment = os.environ | {"PYTHONPATH": str(checkout / "pipeline"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command,
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=MAX_SECONDS,
    )


@pytest.mark.on_demand
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_caught(fault: Fault, checkout: Path) -> None:
    file = checkout / fault.file
    content = file.read_text(encoding="utf-8")
    file.write_text(content.replace(fault.text, fault.becomes), encoding="utf-8")
    try:
        done = run_tests(checkout, fault.caught_by)
    finally:
        file.write_text(content, encoding="utf-8")
    assert done.returncode == TESTS_FAILED, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.on_demand
def test_without_a_fault_they_pass(checkout: Path) -> None:
    """The copy itself is not what fails, and it is the copy that is tested."""
    done = run_tests(checkout, ("tests/unit/decoding/test_philox.py",))
    assert done.returncode == 0, done.stdout[-3000:]
    where = subprocess.run(
        [sys.executable, "-c", "import mindbatch; print(mindbatch.__file__)"],
        env=os.environ | {"PYTHONPATH": str(checkout / "pipeline")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.startswith(str(checkout))
