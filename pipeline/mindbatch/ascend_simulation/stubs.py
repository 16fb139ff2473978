"""Stub libraries for CANN's, so that MindSpore's Ascend plugin loads where there is neither CANN nor NPU.

Every function does nothing and returns 0. MindSpore's own simulation compiles against them; nothing can be
computed.
"""

import ctypes
import mmap
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from mindbatch.ascend_simulation.plugin import AscendPlugin
from mindbatch.io.children import run
from mindbatch.io.errors import BackendError
from mindbatch.io.storage import Storage, TemporaryFolder, reason_of

_LOOKED_UP = re.compile(rb"\0(acl[A-Za-z0-9_]{3,60})(?=\0)")
_NOT_CANN = re.compile(r"_?Py|_ITM_|_ZTH")  # Python's, the compiler's, wrappers of thread-local variables
_SYSTEM = ("libm.so.6", "libdl.so.2", "libpthread.so.0", "libgcc_s.so.1", "libstdc++.so.6")
_TOOL_SECONDS = 120


def wanted_functions(plugin: AscendPlugin) -> list[str]:
    """Lists functions that the plugin links and MindSpore and the system lack, or looks up while it runs.

    Raises:
        BackendError: no program nm, or it failed.
    """
    wanted, had = undefined(plugin.parts), defined([*plugin.others, *plugin.parts])
    missing = {name for name in wanted - had if not _NOT_CANN.match(name)}
    system = _system_libraries()
    linked = {name for name in missing if not any(hasattr(library, name) for library in system)}
    return sorted(linked | looked_up(plugin.readers))


def undefined(libraries: Sequence[Path]) -> set[str]:
    """Names of functions that the libraries want and cannot do without.

    What has a version (`name@GLIBC_2.2.5`) is the system's: CANN gives its symbols none.
    """
    return {fields[-1] for fields in _listing("--undefined-only", libraries) if _is_wanted(fields)}


def _is_wanted(fields: Sequence[str]) -> bool:
    return len(fields) == 2 and fields[0] == "U" and "@" not in fields[1]


def defined(libraries: Sequence[Path]) -> set[str]:
    return {fields[-1].partition("@")[0] for fields in _listing("--defined-only", libraries) if fields}


def looked_up(libraries: Iterable[Path]) -> set[str]:
    """Names of functions that stand as texts in the libraries (for dlsym)."""
    names: set[str] = set()
    for path in libraries:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            names.update(name.decode() for name in _LOOKED_UP.findall(content))
    return names


def needed_tool(*names: str) -> str:
    """The path of the first of these programs that is there. BackendError when none is."""
    for name in names:
        if program := shutil.which(name):
            return program
    raise BackendError(
        f"{' or '.join(names)}: no such program on the PATH; Ascend is simulated with stub libraries, which "
        "are made with gcc and binutils (apt install gcc)"
    )


def run_tool(command: Sequence[str]) -> str:
    """Runs a program of the compiler and returns its output. BackendError with the first line on failure."""
    try:
        done = run(command, _TOOL_SECONDS)
    except TimeoutError:
        raise BackendError(f"{command[0]}: no end after {_TOOL_SECONDS} s") from None
    except OSError as error:
        raise BackendError(f"{command[0]}: cannot be run ({reason_of(error)})") from error
    if done.code:
        reason = next(iter(done.errors.strip().splitlines()), "nothing said")
        raise BackendError(f"{command[0]}: failed with code {done.code}: {reason}")
    return done.output


def _listing(kind: str, libraries: Sequence[Path]) -> Iterator[list[str]]:
    output = run_tool([needed_tool("nm"), "-D", kind, *map(str, libraries)])
    return (line.split() for line in output.splitlines() if not line.endswith(":"))


def _system_libraries() -> list[ctypes.CDLL]:
    """Loads every process's libraries and C++ programs': old compilers left versions out of some names."""
    libraries = [ctypes.CDLL(None)]
    for name in _SYSTEM:
        with suppress(OSError):
            libraries.append(ctypes.CDLL(name))
    return libraries


FOLDER = "ascend_simulation"
LIBRARIES = Path("cann/lib")  # the plugin asks for a folder of this name
PACKAGES = Path("python")
_REVISION = 2  # of what is built here; another one makes other folders
_MAIN = "libascendcl.so"  # has all functions; the other libraries are links to it
_OTHERS = (
    *("acl_op_compiler", "acl_tdt_channel", "acl_tdt_queue", "ascend_hal", "c_sec", "cust_opapi"),
    *("error_manager", "exe_graph", "ge_common", "ge_runner", "graph", "graph_base", "hccl", "hccl_fwk"),
    *("msprofiler", "nnopbase", "opapi", "platform", "register", "runtime", "shmem"),
)
_OPTIONS = ("-shared", "-fPIC", "-w")
_DEVICE = "Ascend910B2"
_DEVICE_NAME = "aclrtGetSocName"  # its answer counts: which kernels there are
_FACTORY = "_ZN2ge13StatusFactory8InstanceEv"
"""ge::StatusFactory::Instance(), into whose std::map<uint32_t, std::string> libraries of 2.10 put what they
know while they are loaded. An empty one: a word before the tree's header, whose ends are the header."""
_OPERATOR = "_ZN2ge15OperatorFactory14CreateOperatorEPKcS2_"
"""ge::OperatorFactory::CreateOperator, which makes an Operator where its caller says: a word, and a pointer
that counts its users, here none."""
_ANSWERS = {
    _DEVICE_NAME: f'const char *{_DEVICE_NAME}() {{ return "{_DEVICE}"; }}\n',
    _FACTORY: (
        f"void *{_FACTORY}() {{ static void *map[8]; if (!map[3]) map[3] = map[4] = map + 1; return map; }}\n"
    ),
    _OPERATOR: f"void *{_OPERATOR}(void **made) {{ made[0] = made[1] = made[2] = 0; return made; }}\n",
}
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
    source.write_text(_source(name for name in wanted_functions(plugin) if name not in _ANSWERS))
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
    return stubs + "".join(_ANSWERS.values())


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
