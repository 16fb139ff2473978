"""Installations: that the pins are within the ranges, and the size of the core and what runs of it."""

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from mindbatch.tasks import doctor
from package_sources import CHECKOUT, copy_of_the_sources, without_optimizing

MOST_MIB = 500
COUNTED = "An increasing sequence: one,"
OF_MINDSPORE = {"mindspore", "mindformers"}


def _pins(name: str) -> dict[str, set[str]]:
    """Reads the versions of a file by package; Pythons may differ in them."""
    lines = (CHECKOUT / name).read_text().partition("# What `.[lm-eval]` adds")[0].splitlines()
    found: dict[str, set[str]] = {}
    for requirement in (Requirement(line) for line in lines if line and not line.startswith("#")):
        name = requirement.name.lower().replace("_", "-")
        found.setdefault(name, set()).add(str(requirement.specifier).removeprefix("=="))
    return found


NOT_PINNED = {"lm-eval", "parity", "docs"}  # extras that the tests do without
BEYOND_THE_CORE = {"mindspore", "mindformers", "transformers", "ray", "mpi", "modelscope", "remote", "test"}


@pytest.mark.parametrize(
    ("name", "not_pinned"),
    [
        ("constraints.txt", NOT_PINNED),
        ("constraints-2.10.txt", NOT_PINNED),
        ("constraints-oldest.txt", NOT_PINNED | BEYOND_THE_CORE),
        ("constraints-newest.txt", NOT_PINNED | BEYOND_THE_CORE),
    ],
)
def test_the_pins_are_in_the_ranges_of_setup_py(name: str, not_pinned: set[str]) -> None:
    pins = _pins(name)
    for requirement in map(Requirement, requires("mindbatch") or ()):
        if requirement.marker and any(requirement.marker.evaluate({"extra": each}) for each in not_pinned):
            continue
        versions = pins[requirement.name.lower().replace("_", "-")]
        assert all(requirement.specifier.contains(version) for version in versions), requirement


def test_the_oldest_pins_are_the_lower_bounds_of_the_core_and_the_server() -> None:
    pins = _pins("constraints-oldest.txt")
    for requirement in map(Requirement, requires("mindbatch") or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": "server"}):
            (lowest,) = [bound.version for bound in requirement.specifier if bound.operator == ">="]
            versions = pins[requirement.name.lower().replace("_", "-")]
            assert {*map(Version, versions)} == {Version(lowest)}, requirement


def test_the_pins_for_mindspore_2_10_differ_in_what_it_needs() -> None:
    usual, other = _pins("constraints.txt"), _pins("constraints-2.10.txt")
    assert {name for name in other if usual.get(name) != other[name]} == OF_MINDSPORE | {"pyarrow"}
    assert usual.keys() - other.keys() == {"wheel"}


@pytest.fixture(scope="module")
def mindbatch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an environment that has the core, in the newest versions."""
    folder = tmp_path_factory.mktemp("core")
    sources = copy_of_the_sources(folder / "sources")
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    before = _mebibytes(environment)
    pip = [str(environment / "bin/python"), "-m", "pip", "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, str(sources)], env=os.environ | without_optimizing(folder), check=True)
    assert _mebibytes(environment) - before < MOST_MIB
    return environment / "bin/mindbatch"


def _mebibytes(folder: Path) -> float:
    return sum(path.lstat().st_size for path in folder.rglob("*")) / 2**20


@pytest.fixture(scope="module")
def without_kernels(mindbatch: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same environment, with the package of a clone that was built where there is no compiler."""
    sources = copy_of_the_sources(tmp_path_factory.mktemp("clone") / "sources")
    shutil.copytree(CHECKOUT / "scripts", sources / "scripts")
    pip = [str(mindbatch.with_name("python")), "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    subprocess.run(
        [*pip, "--force-reinstall", str(sources)],
        env={"PATH": str(mindbatch.parent), "HOME": os.environ["HOME"]},
        check=True,
    )
    return sources


def _run(mindbatch: Path, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    command = [str(mindbatch), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.builds
def test_native_models_need_neither_mindspore_nor_mindformers(mindbatch: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        result = _run(mindbatch, tmp_path, *arguments)
        assert result.returncode == 0, result.stderr
        return result.stdout

    generate = ["generate", "model=tiny_gpt2", f"prompts=[{COUNTED!r}]", "decoding.max_new_tokens=3"]
    text = run(*generate)
    assert text == f"{COUNTED} two, three\n"
    assert run(*generate, "parallel.data_parallel=2", "parallel.model_parallel=2") == text
    data = ["model=tiny_gpt2", "data=number_words_increasing", "decoding.max_new_tokens=4"]
    run("batch", *data, "output.dir=run")
    run("evaluate", *data, "report=report.html")
    assert (tmp_path / "report.html").is_file()
    run("plan", *data, "runtime=ascend")
    run("reshard", "source=shipped:examples/tiny_gpt2", "target.dir=ranks", "target.model_parallel=2")
    run("reshard", "source=ranks", "target.dir=whole")
    found = json.loads(run("doctor", "format=json"))
    assert set(found["missing"]) == set(doctor.USES)
    run("serve", "model=tiny_gpt2", "--print-config")


@pytest.mark.builds
def test_a_clone_without_a_compiler_in_an_active_environment(
    mindbatch: Path, without_kernels: Path, tmp_path: Path
) -> None:
    """It installs, says once that NumPy computes and what changes that; scripts use the environment."""
    pip = f"{mindbatch.with_name('python')} -m pip install"
    line = f"{pip} --no-deps --force-reinstall {without_kernels} builds them"
    for arguments in (
        ["generate", "prompts=[one]"],
        ["batch", "data=number_words_increasing", "output.dir=run", "parallel.data_parallel=2"],
    ):
        done = _run(mindbatch, tmp_path, *arguments, "model=tiny_gpt2", "decoding.max_new_tokens=2")
        assert done.returncode == 0, done.stderr
        (note,) = [text for text in done.stderr.splitlines() if "C++ kernels are not built" in text]
        assert note.endswith(line)
    attention = json.loads(_run(mindbatch, tmp_path, "doctor", "format=json").stdout)["kernels"]["attention"]
    assert attention.endswith(line)
    order = "mindbatch generate model=tiny_gpt2 decoding.max_new_tokens=3 parallel.data_parallel=2"
    script = ["bash", str(without_kernels / "scripts/run_dist_gen.sh"), order]
    script += [str(CHECKOUT / "examples/rank_table.json"), "[0,2]", "2"]
    active = {"VIRTUAL_ENV": str(mindbatch.parents[1]), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    active["INPUT_DATA"] = COUNTED
    done = subprocess.run(script, cwd=tmp_path, env=active, capture_output=True, text=True, check=False)
    assert done.stdout == f"{COUNTED} two, three\n", done.stderr
    assert not (without_kernels / ".venv").exists()


@pytest.mark.builds
@pytest.mark.parametrize(
    ("arguments", "lacks"),
    [
        (["runtime=ascend"], "runtime.device_target=Ascend: MindSpore is"),
        (["model.provider=mindformers"], "model.provider=mindformers: MindSpore and MindFormers are"),
    ],
)
def test_what_needs_them_is_refused_with_the_line_that_brings_them(
    mindbatch: Path, tmp_path: Path, arguments: list[str], lacks: str
) -> None:
    for task in (["generate", "prompts=[a]"], ["compile"]):
        result = _run(mindbatch, tmp_path, task[0], "model=tiny_gpt2", *task[1:], *arguments)
        assert f"mindbatch: {lacks} not installed here; {mindbatch.with_name('python')} -m" in result.stderr
        assert result.returncode == 2
