"""The stub libraries for CANN's: built once from what the plugin wants, whole or not at all."""

import shutil
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mindbatch.ascend_simulation.stubs import (
    FOLDER,
    AscendPlugin,
    looked_up,
    needed_functions,
    plugin_in,
    stub_libraries,
)
from mindbatch.io.errors import BackendError

pytestmark = pytest.mark.skipif(
    not (shutil.which("gcc") and shutil.which("nm")), reason="gcc and binutils are needed"
)
SOURCE = """
int aclInit(void); int HcclSend(void); int of_mindspore(void); int printf(const char *, ...);
int PyErr_Clear(void);
int maybe(void) __attribute__((weak));
const char *later = "aclrtLookedUp";
int all_of_it(void) {
    return aclInit() + HcclSend() + of_mindspore() + printf("x") + PyErr_Clear() + (maybe ? maybe() : 0);
}
"""


def compiled(source: str, library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    text = library.with_suffix(".c")
    text.write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", library, text], check=True)


@pytest.fixture
def plugin(tmp_path: Path) -> AscendPlugin:
    """A plugin that wants two functions of CANN, and looks a third one up."""
    folder = tmp_path / "mindspore/lib"
    compiled(SOURCE, folder / "plugin/libmindspore_ascend.so.2")
    compiled("int of_mindspore(void) { return 0; }", folder / "libmindspore_core.so")
    compiled("int of_operators(void) { return 0; }", folder / "plugin/libmindspore_ops_ascend.so")
    return plugin_in(tmp_path / "mindspore", "2.9.0")


def test_what_neither_mindspore_nor_the_system_has_is_wanted(plugin: AscendPlugin) -> None:
    assert needed_functions(plugin) == ["HcclSend", "aclInit", "aclrtLookedUp"]


def test_libraries_for_another_processor_want_nothing(plugin: AscendPlugin) -> None:
    foreign = plugin.folder / "plugin/ascend/libfor_the_npu.so"
    compiled("int of_the_npu(void); int f(void) { return of_the_npu(); }", foreign)
    assert "of_the_npu" in needed_functions(plugin)
    content = bytearray(foreign.read_bytes())
    content[18:20] = b"\xb7\0"  # AArch64, in an ELF header
    foreign.write_bytes(content)
    assert "of_the_npu" not in needed_functions(plugin)


def test_names_that_only_begin_like_those_of_cann_are_not_looked_up(tmp_path: Path) -> None:
    path = tmp_path / "text.so"
    path.write_bytes(b"\0aclrtMalloc\0aclrtFree\0xaclnnAdd\0acl-word\0acl.json\0")
    assert looked_up([path]) == {"aclrtMalloc", "aclrtFree"}


def test_they_are_built_once(plugin: AscendPlugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = stub_libraries(plugin, tmp_path / "cache")
    monkeypatch.setenv("PATH", "")
    assert stub_libraries(plugin, tmp_path / "cache") == home


@pytest.mark.slow
def test_another_plugin_or_version_has_its_own(plugin: AscendPlugin, tmp_path: Path) -> None:
    homes = {stub_libraries(plugin, tmp_path)}
    homes.add(stub_libraries(AscendPlugin("2.9.1", plugin.folder), tmp_path))
    with (plugin.folder / "plugin/libmindspore_ascend.so.2").open("ab") as file:
        file.write(b"\0")
    homes.add(stub_libraries(plugin, tmp_path))
    assert len(homes) == 3


@pytest.mark.slow
def test_several_at_once_give_one_folder(plugin: AscendPlugin, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with ThreadPoolExecutor(4) as pool:
        homes = set(pool.map(lambda _: stub_libraries(plugin, cache), range(4)))
    assert [*(cache / FOLDER).iterdir()] == [*homes]


def test_missing_tools_are_named_with_their_package(
    plugin: AscendPlugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match=r"^gcc or cc: no such program on the PATH; .*apt install gcc\)$"):
        stub_libraries(plugin, tmp_path / "cache")
    assert [*(tmp_path / "cache" / FOLDER).iterdir()] == []


def test_a_compiler_that_fails_leaves_nothing(
    plugin: AscendPlugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "gcc").write_text("#!/bin/sh\necho 'no room on the device' >&2; echo more >&2; exit 3\n")
    (tools / "gcc").chmod(stat.S_IRWXU)
    nm = shutil.which("nm")
    assert nm is not None
    (tools / "nm").symlink_to(nm)
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(BackendError, match=r"/bin/gcc: failed with code 3: no room on the device$"):
        stub_libraries(plugin, tmp_path / "cache")
    assert [*(tmp_path / "cache" / FOLDER).iterdir()] == []


def test_a_cache_that_cannot_be_written_is_named(plugin: AscendPlugin, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(
        BackendError, match=r"cache/ascend_simulation: cannot be written \(Not a directory\)$"
    ):
        stub_libraries(plugin, tmp_path / "cache")


def test_a_mindspore_without_the_plugin_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        BackendError, match=r"^MindSpore 2.9.0 has no plugin libmindspore_ascend.so.2 in .*/lib"
    ):
        plugin_in(tmp_path, "2.9.0")


def test_another_version_is_refused_with_those_that_are_allowed(plugin: AscendPlugin) -> None:
    with pytest.raises(
        BackendError,
        match=r"^MindSpore 2.8.0: the simulation of Ascend needs 2.9.0 or 2.10.0; .*pip install mindspore==",
    ):
        plugin_in(plugin.folder.parent, "2.8.0")
