"""The process environment and its cores: what is set, what is kept; the libraries are quiet."""

import json
import os
import stat
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from mindbatch.config import machine as processors
from mindbatch.config.environment import (
    cache_folder,
    configure_process,
    keep_files_private,
    prepare_environment,
    thread_settings,
)
from mindbatch.config.machine import granted_cores, thread_notes
from mindbatch.io.storage import make_folder, write_whole

LIBRARIES = """
import sys
from mindbatch.config.environment import prepare_environment
from mindbatch.backends.mindformers.imports import stub_hyper_parallel
prepare_environment(verbose="verbose" in sys.argv)
stub_hyper_parallel()
import numpy, mindspore, mindformers, transformers
from mindspore import Tensor, nn, ops

mindspore.set_context(mode=mindspore.GRAPH_MODE)

class Good(nn.Cell):
    def construct(self, x):
        return ops.relu(x * 2 + 1)

class Bad(nn.Cell):
    def construct(self, x):
        return ops.matmul(x, x)

x = Tensor(numpy.ones((2, 3), numpy.float32))
assert Good()(x).asnumpy().sum() == 18
if "fail" in sys.argv:
    print("now", flush=True)
    print("now", file=sys.stderr, flush=True)
    try:
        Bad()(x)
    except Exception:
        sys.exit(5)
"""


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LD_LIBRARY_PATH", "LANG")}
    monkeypatch.setattr(os, "environ", kept | {"HOME": str(tmp_path / "home")})
    cache_folder.cache_clear()
    with warnings.catch_warnings():
        yield
    cache_folder.cache_clear()


@pytest.mark.parametrize(
    ("umask", "modes"),
    [(0o022, (0o600, 0o700)), (0o027, (0o640, 0o750)), (0o002, (0o664, 0o775)), (0o077, (0o600, 0o700))],
)
def test_new_files_are_private_unless_a_umask_was_chosen(
    tmp_path: Path, umask: int, modes: tuple[int, int]
) -> None:
    before = os.umask(umask)
    try:
        keep_files_private()
        write_whole(tmp_path / "file", b"")
        make_folder(tmp_path / "folder")
    finally:
        os.umask(before)
    made = (tmp_path / "file", tmp_path / "folder")
    assert tuple(stat.S_IMODE(path.stat().st_mode) for path in made) == modes


def test_what_the_user_set_is_kept(tmp_path: Path) -> None:
    os.environ.update({"GLOG_v": "1", "LOG_MF_PATH": "/mine", "OMP_NUM_THREADS": "3", "HF_HUB_OFFLINE": "0"})
    prepare_environment()
    assert os.environ.items() >= {("GLOG_v", "1")}
    assert os.environ["LOG_MF_PATH"] == "/mine"
    assert os.environ["MS_OM_PATH"] == str(tmp_path / "home/.cache/mindbatch/logs")
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert thread_settings()["OMP_NUM_THREADS"] == "3"


def test_threads_of_the_configuration_go_before_the_environment() -> None:
    os.environ["OMP_NUM_THREADS"] = "3"
    prepare_environment(num_threads=2)
    assert thread_settings()["OMP_NUM_THREADS"] == "2"


def test_verbose_leaves_the_messages() -> None:
    prepare_environment(verbose=True)
    assert "GLOG_v" not in os.environ
    assert "TRANSFORMERS_VERBOSITY" not in os.environ
    assert "MS_OM_PATH" in os.environ


def test_the_cache_is_where_the_user_keeps_caches(tmp_path: Path) -> None:
    os.environ["XDG_CACHE_HOME"] = str(tmp_path / "xdg")
    assert cache_folder() == tmp_path / "xdg" / "mindbatch"
    assert cache_folder().is_dir()


def test_the_cache_is_temporary_where_home_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    assert cache_folder().is_dir()
    assert not cache_folder().is_relative_to(tmp_path / "home")


def run_libraries(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    program = folder.with_name("program.py")  # MindSpore compiles from source files only
    program.write_text(LIBRARIES)
    command = [sys.executable, str(program), *words]
    return subprocess.run(command, cwd=folder, env=os.environ, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_libraries_are_quiet_and_a_failed_compilation_leaves_its_graph_in_the_cache(
    tmp_path: Path,
) -> None:
    result = run_libraries(tmp_path / "here", "fail")
    assert result.returncode == 5
    assert result.stdout.startswith("now\n")
    assert result.stderr.startswith("now\n")
    assert list((tmp_path / "here").iterdir()) == []
    assert (tmp_path / "home/.cache/mindbatch/logs/rank_0/om/analyze_fail.ir").is_file()


@pytest.mark.on_demand
def test_verbose_shows_the_messages(tmp_path: Path) -> None:
    result = run_libraries(tmp_path / "here", "verbose")
    assert result.returncode == 0
    assert "WARNING" in result.stderr
    assert "WARNING" in result.stdout
    assert list((tmp_path / "here").iterdir()) == []


def test_programs_that_mindspore_asks_are_found_without_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, "PATH": "/nowhere"})
    prepare_environment()
    assert os.environ["PATH"] == f"/nowhere:{os.defpath}"


@pytest.mark.parametrize(("notebook", "term"), [({"JPY_PARENT_PID": "7"}, "dumb"), ({}, "xterm-color")])
def test_a_command_of_a_notebook_has_no_cursor_to_move(notebook: dict[str, str], term: str) -> None:
    os.environ.update({"TERM": "xterm-color", **notebook})
    configure_process()
    assert os.environ["TERM"] == term


@pytest.mark.slow
def test_where_the_locale_is_ascii_prompts_and_names_of_files_are_not(tmp_path: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    (tmp_path / "d\u00e9j\u00e0.yaml").write_text("system: vu", encoding="utf-8")
    words = ["generate", "--print-config", "prompts='\u00e9\u6f22'", "--config", "d\u00e9j\u00e0.yaml"]
    done = subprocess.run(
        [sys.executable, "-m", "mindbatch", *words], env=environment, cwd=tmp_path, capture_output=True
    )
    assert done.stderr == b""
    assert "prompts: \u00e9\u6f22\n" in done.stdout.decode()
    assert b"system: vu\n" in done.stdout


def test_an_isolated_program_finds_what_pythonpath_names_but_not_the_current_folder(tmp_path: Path) -> None:
    code = "import json, sys; from mindbatch.config import environment; environment.configure_process()\n"
    code += "print(json.dumps(sys.path))"
    path = os.pathsep.join(["/named", str(tmp_path), "relative", ""])
    command = [sys.executable, "-I", "-c", code]
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith('["/named", "')
    assert not {str(tmp_path), "relative", ""} & set(json.loads(done.stdout))


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
