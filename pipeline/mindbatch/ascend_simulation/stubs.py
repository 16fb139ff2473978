"""Stub libraries for CANN's, so that MindSpore's Ascend plugin loads where there is neither CANN nor NPU.

Every function does nothing and returns 0. MindSpore's own simulation compiles against them; nothing can be
computed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from mindbatch.ascend_simulation.plugin import AscendPlugin
from mindbatch.ascend_simulation.symbols import needed_tool, run_tool, wanted_functions
from mindbatch.backends.failure import BackendError
from mindbatch.io.leftovers import TemporaryFolder
from mindbatch.io.storage import Storage, reason_of

FOLDER = "ascend_simulation"
LIBRARIES = Path("cann/lib")  # the plugin asks for a folder of this name
PACKAGES = Path("python")
_REVISION = 1  # of what is built here; another one makes other folders
_MAIN = "libascendcl.so"  # has all functions; the other libraries are links to it
_OTHERS = (
    *("acl_op_compiler", "acl_tdt_channel", "acl_tdt_queue", "ascend_hal", "c_sec", "cust_opapi"),
    *("error_manager", "exe_graph", "ge_common", "ge_runner", "graph", "graph_base", "hccl", "hccl_fwk"),
    *("msprofiler", "nnopbase", "opapi", "platform", "register", "runtime", "shmem"),
)
_OPTIONS = ("-shared", "-fPIC", "-w")
_DEVICE = "Ascend910B2"
_DEVICE_NAME = "aclrtGetSocName"  # the one function whose answer counts: which kernels there are
_CANN_VERSION = "7.5.0"
_MODULES = {"__init__.py": "", "sys_version.py": f'__sys_version__ = "{_CANN_VERSION}"\n'}


def stub_libraries(plugin: AscendPlugin, cache: Path) -> Path:
    """A folder with LIBRARIES and PACKAGES; built on first use, kept in `cache`.

    Of processes that build at once each builds its own, and the first to be done is taken.

    Raises:
        BackendError: no compiler, or it failed, or the cache cannot be written.
    """
    home = cache / FOLDER / f"{plugin.key}-{_REVISION}"
    if home.is_dir():
        return home
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        building = TemporaryFolder(".building-", home.parent)
    except OSError as error:
        raise BackendError(f"{home.parent}: cannot be written ({reason_of(error)})") from error
    try:
        _build(plugin, building.path)
        _publish(building.path, home, Storage())
    except OSError as error:
        raise BackendError(f"{home.parent}: cannot be written ({reason_of(error)})") from error
    finally:
        building.remove()
    return home


def _build(plugin: AscendPlugin, home: Path) -> None:
    compiler = needed_tool("gcc", "cc")
    folder = home / LIBRARIES
    folder.mkdir(parents=True)
    (folder.parent / "lib64").symlink_to(folder.name)  # some are looked up there
    source = home / "functions.c"
    source.write_text(_source(name for name in wanted_functions(plugin) if name != _DEVICE_NAME))
    run_tool([compiler, *_OPTIONS, f"-Wl,-soname,{_MAIN}", "-o", str(folder / _MAIN), str(source)])
    for library in _OTHERS:
        (folder / f"lib{library}.so").symlink_to(_MAIN)
    package = home / PACKAGES / "hccl"
    package.mkdir(parents=True)
    for name, text in _MODULES.items():
        (package / name).write_text(text)
    home.chmod(0o755)


def _source(functions: Iterable[str]) -> str:
    stubs = "".join(f"long {name}() {{ return 0; }}\n" for name in functions)
    return f'{stubs}const char *{_DEVICE_NAME}() {{ return "{_DEVICE}"; }}\n'


def _publish(built: Path, home: Path, storage: Storage) -> None:
    """Makes the folder appear whole, also after a power cut."""
    paths = [path for path in built.rglob("*") if not path.is_symlink()]
    folders = [path for path in paths if path.is_dir()]
    for path in paths:
        if path.is_dir():
            continue
        handle = storage.reopen(path)
        try:
            storage.sync(handle)
        finally:
            storage.close(handle)
    for folder in (*folders, built):
        storage.sync_folder(folder)
    try:
        os.rename(built, home)
    except OSError:
        if not home.is_dir():  # another process was first otherwise
            raise
    storage.sync_folder(home.parent)
