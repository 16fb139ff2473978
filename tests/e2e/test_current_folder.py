"""Tasks, scripts and tools in a folder with a module for each name that may be imported: none is executed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from import_traps import LAID, lay_traps

ROWS = '{"q": "hello", "own": {"regex": "[a-z ]{2}"}}\n{"q": "user", "own": null}\n'
MODEL = "model.checkpoint_name_or_path=model"
TASKS = {
    "batch": f"{MODEL} data.path=rows.jsonl output.dir=run data.template={{{{q}}}} data.decoding_column=own",
    "runs": "run",
    "diff": "run run",
    "layout": f"{MODEL} parallel.model_parallel=2",
    "reshard": "source=model target.dir=out target.model_parallel=2 workers=2",
    "inspect": "model",
    "rank-table": "devices=[0,1]",
}
WITH_MINDSPORE = {  # as batch has it
    "doctor": "",
    "generate": f"{MODEL} prompts=hello",
    "compare": f"{MODEL} prompts=hello decoding=[greedy,top_p]",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "tasks", [TASKS, pytest.param(WITH_MINDSPORE, marks=pytest.mark.on_demand)], ids=["first", "others"]
)
def test_no_task_executes_what_lies_in_the_current_folder(
    tmp_path: Path, small_gpt2: Path, tasks: dict[str, str]
) -> None:
    lay_traps(tmp_path, besides=("mindbatch",))  # python -m takes that one from here: it was asked to
    (tmp_path / "model").symlink_to(small_gpt2)
    (tmp_path / "rows.jsonl").write_text(ROWS)
    for task, arguments in tasks.items():
        command = [sys.executable, "-m", "mindbatch", task, *arguments.split()]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        assert not (tmp_path / LAID).exists(), (task, (tmp_path / LAID).read_text())
        assert b"Traceback" not in done.stderr, (task, done.stderr)
        if task in ("batch", "reshard"):
            assert done.returncode == 0, (task, done.stderr)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("launcher", ["dynamic", "ray"])
def test_no_launcher_does(tmp_path: Path, launcher: str) -> None:
    lay_traps(tmp_path)
    keys = [*SHIPPED.split(), "parallel.data_parallel=2", f"launch={launcher}"]
    command = [sys.executable, "-I", "-m", "mindbatch", "generate", *keys]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert not (tmp_path / LAID).exists(), (tmp_path / LAID).read_text()
    assert done.returncode == 0, done.stderr


CHECKOUT = Path(__file__).parents[2]
SHIPPED = "model=tiny_gpt2 prompts=one decoding.max_new_tokens=8"
CUSTOM = (
    f"python {CHECKOUT}/tools/generate_custom.py --model_type tiny_gpt2 --input_data one --max_new_tokens 2"
)
TABLE = str(CHECKOUT / "examples/rank_table.json")
USERS_SCRIPTS = {
    "demo.sh": [],
    "run_dist_gen.sh": [f"mindbatch generate {SHIPPED} parallel.model_parallel=2", TABLE, "[0,2]", "2"],
    "msrun_launcher.sh": [f"{CUSTOM} --use_parallel True --data_parallel 2", "2"],
    "ascend_check.sh": ["--help"],
}
DEVELOPERS_SCRIPTS = ["docs.sh", "test.sh", "test_builds.sh", "test_processes.sh", "compile_for_ascend.sh"]
FOR_OTHER_MACHINES = [
    "build_wheels.sh",
    "test_arm.sh",
    "test_pythons.sh",
]  # they run compilers and a system that are not here
TOOLS = sorted((CHECKOUT / "tools").glob("*.py"))
RECORDING_PYTHON = """#!/bin/bash
# A Python that records how it was started, and only answers what version it is.
printf '%s\\n' "$0 $* ${PYTHONPATH:+PYTHONPATH}${PYTHONHOME:+PYTHONHOME}" >>'CALLS'
case "$*" in
    "-I -c import ensurepip"*) ;;
    *check_arguments.py*) exit 100 ;;
    "-I -c import platform"*) echo 3.11.1 ;;
    "-I -m venv --clear "*) mkdir -p "$5/bin" && cp "$0" "$5/bin/python" ;;
esac
"""


def run_script(
    script: Path, here: Path, *arguments: str, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Runs it in a folder which the variables of the user's Python name, too."""
    set_by_user = {"PYTHONPATH": f"{here}:", "PYTHONHOME": str(here), "PYTHONSTARTUP": f"{here}/os.py"}
    environment = {"PATH": os.environ["PATH"], "HOME": str(here), **set_by_user, **variables}
    done = subprocess.run(
        ["bash", script, *arguments], cwd=here, env=environment, capture_output=True, text=True, check=False
    )
    assert not (here / LAID).exists(), (here / LAID).read_text()
    return done


def test_every_script_is_here() -> None:
    there = {path.name for path in (CHECKOUT / "scripts").glob("*.sh")}
    assert there == {*USERS_SCRIPTS, *DEVELOPERS_SCRIPTS, *FOR_OTHER_MACHINES, "venv.sh", "debian.sh"}


@pytest.mark.slow
@pytest.mark.parametrize("empty", [False, True], ids=["executing", "empty"])
@pytest.mark.parametrize("name", USERS_SCRIPTS)
def test_no_script_executes_what_lies_in_the_current_folder(name: str, tmp_path: Path, empty: bool) -> None:
    lay_traps(tmp_path, empty=empty)
    arguments, python = USERS_SCRIPTS[name], {} if name == "demo.sh" else {"PYTHON": sys.executable}
    done = run_script(CHECKOUT / "scripts" / name, tmp_path, *arguments, **python)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("name", [*USERS_SCRIPTS, *DEVELOPERS_SCRIPTS])
def test_every_python_of_a_script_is_isolated_and_has_an_absolute_path(name: str, tmp_path: Path) -> None:
    checkout, programs, here = tmp_path / "checkout", tmp_path / "programs", tmp_path / "here"
    for folder in (checkout / "pipeline/mindbatch/kernels/csrc", programs, here):
        folder.mkdir(parents=True)
    for file in ("setup.py", "pyproject.toml", "constraints.txt", "pipeline/mindbatch/kernels/csrc/any"):
        (checkout / file).touch()
    shutil.copytree(CHECKOUT / "scripts", checkout / "scripts")
    (here / "bin").mkdir()
    for python in (programs / "python3.12", here / "python3.12", here / "bin/python", here / "mindbatch"):
        python.write_text(RECORDING_PYTHON.replace("CALLS", str(tmp_path / "calls")))
        python.chmod(0o755)
    path = f":.:{programs}:/usr/bin:/bin"  # no environment that has MindBatch
    variables = {"PATH": path, "VIRTUAL_ENV": ".", "CONDA_PREFIX": "."}
    done = run_script(checkout / "scripts" / name, here, *USERS_SCRIPTS.get(name, []), **variables)
    assert done.returncode == 0, done.stderr
    for call in (calls := (tmp_path / "calls").read_text().splitlines()):
        assert call.startswith((f"{programs}/python3.12 -I ", f"{checkout}/.venv/bin/python -I ")), call
        is_last = (
            call == calls[-1] and name in USERS_SCRIPTS
        )  # what the user has set is for the user's program
        assert is_last or "PYTHONPATH" not in call, call
    installed = [call for call in calls if " -m venv " in call or " -m pip install " in call]
    assert len(installed) == 3
    assert not [call for call in installed if call.endswith(("PYTHONPATH", "PYTHONHOME"))]


@pytest.mark.slow
@pytest.mark.parametrize("empty", [False, True], ids=["executing", "empty"])
def test_no_tool_executes_what_lies_in_the_current_folder(tmp_path: Path, empty: bool) -> None:
    lay_traps(tmp_path, empty=empty)
    assert TOOLS
    for tool in TOOLS:
        for options in ([], ["-I"]):
            command = [sys.executable, *options, str(tool), "--help"]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert not (tmp_path / LAID).exists(), (tool, (tmp_path / LAID).read_text())
            assert done.returncode == 0, done.stderr
            assert done.stdout.startswith("usage: "), tool
