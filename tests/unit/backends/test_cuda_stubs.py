"""The stand-ins for CUDA's libraries: built once from what the plugin wants, whole or not at all."""

import ctypes
import shutil
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mindbatch.backends.cuda_stubs import FOLDER, stub_libraries
from mindbatch.backends.failure import BackendError
from mindbatch.backends.gpu_plugin import LIBRARIES, GpuPlugin, plugin_in, symbols_in

needs_gcc = pytest.mark.skipif(
    not (shutil.which("gcc") and shutil.which("nm")), reason="gcc and binutils are needed"
)
SOURCE = """
int cublasCreate_v2(void); int cudaMalloc(void); int cuInit(void); int printf(const char *, ...);
int all_of_it(void) { return cublasCreate_v2() + cudaMalloc() + cuInit() + printf("x"); }
"""


@pytest.fixture
def plugin(tmp_path: Path) -> GpuPlugin:
    """A plugin that wants three functions of CUDA."""
    folder = tmp_path / "mindspore/lib/plugin"
    folder.mkdir(parents=True)
    (tmp_path / "plugin.c").write_text(SOURCE)
    library = folder / "libmindspore_gpu.so.11.6"
    command = ["gcc", "-shared", "-fPIC", "-w", "-o", str(library), str(tmp_path / "plugin.c")]
    subprocess.run(command, check=True)
    return plugin_in(tmp_path / "mindspore", "2.9.0")


def compiler(folder: Path, script: str) -> None:
    """A stand-in for gcc."""
    folder.mkdir(exist_ok=True)
    (folder / "gcc").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "gcc").chmod(stat.S_IRWXU)


def test_symbols_go_to_the_library_of_their_prefix() -> None:
    lines = [
        "libx.so:",
        "                 U cudaMalloc@libcudart.so.11.0",
        "                 U __cudaRegisterFunction@libcudart.so.11.0",
        "                 U cudnnCreate",
        "                 U cuInit",
        "                 U cublasSgemm_v2@@libcublas.so.11",
        "                 U cudatum",
        "                 U curious",
        "                 w __gmon_start__",
        "",
    ]
    found = {library: tags for library, tags in symbols_in(lines).items() if tags}
    assert found == {
        "libcudart.so.11.0": {"libcudart.so.11.0": {"cudaMalloc", "__cudaRegisterFunction"}},
        "libcudnn.so.8": {"": {"cudnnCreate"}},
        "libcuda.so.1": {"": {"cuInit"}},
        "libcublas.so.11": {"libcublas.so.11": {"cublasSgemm_v2"}},
    }


@needs_gcc
def test_every_library_is_there_with_what_is_wanted_of_it(plugin: GpuPlugin, tmp_path: Path) -> None:
    home = stub_libraries(plugin, tmp_path / "cache")
    libraries = {path.name for path in (home / "lib64").iterdir()}
    assert libraries == {*LIBRARIES.values(), "libcudart.so.11.6.55", "libcudnn.so.8.5.0"}
    for library, function in (("cuda.so.1", "cuInit"), ("cudart.so.11.6.55", "cudaMalloc")):
        assert getattr(ctypes.CDLL(str(home / "lib64" / f"lib{library}")), function)() == 0
    said = subprocess.run([home / "bin/nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    assert said == "Cuda compilation tools, release 11.6, V11.6.55\n"


@needs_gcc
def test_they_are_built_once(plugin: GpuPlugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = stub_libraries(plugin, tmp_path / "cache")
    monkeypatch.setenv("PATH", "")
    assert stub_libraries(plugin, tmp_path / "cache") == home


@needs_gcc
def test_another_plugin_or_version_has_its_own(plugin: GpuPlugin, tmp_path: Path) -> None:
    homes = {stub_libraries(plugin, tmp_path)}
    homes.add(stub_libraries(GpuPlugin("2.9.1", plugin.folder, plugin.path), tmp_path))
    with plugin.path.open("ab") as file:
        file.write(b"\0")
    homes.add(stub_libraries(plugin, tmp_path))
    assert len(homes) == 3


@needs_gcc
def test_several_at_once_give_one_folder(plugin: GpuPlugin, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with ThreadPoolExecutor(4) as pool:
        homes = set(pool.map(lambda _: stub_libraries(plugin, cache), range(4)))
    assert [*(cache / FOLDER).iterdir()] == [*homes]


@needs_gcc
def test_a_missing_compiler_is_named_with_its_package(
    plugin: GpuPlugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match=r"^gcc or cc: no such program on the PATH; .*apt install gcc\)$"):
        stub_libraries(plugin, tmp_path / "cache")
    assert [*(tmp_path / "cache" / FOLDER).iterdir()] == []


@needs_gcc
def test_a_compiler_that_fails_leaves_nothing(
    plugin: GpuPlugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(tmp_path / "bin", "echo 'no room on the device' >&2; echo more >&2; exit 3")
    nm = shutil.which("nm")
    assert nm is not None
    (tmp_path / "bin/nm").symlink_to(nm)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(BackendError, match=r"/bin/gcc: failed with code 3: no room on the device$"):
        stub_libraries(plugin, tmp_path / "cache")
    assert [*(tmp_path / "cache" / FOLDER).iterdir()] == []


@needs_gcc
def test_a_cache_that_cannot_be_written_is_named(plugin: GpuPlugin, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(BackendError, match=r"cache/cuda_stubs: cannot be written \(Not a directory\)$"):
        stub_libraries(plugin, tmp_path / "cache")


def test_a_mindspore_without_the_plugin_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        BackendError, match=r"^MindSpore 2.9.0 has no plugin libmindspore_gpu.so.11.6 in .*x86-64"
    ):
        plugin_in(tmp_path, "2.9.0")
