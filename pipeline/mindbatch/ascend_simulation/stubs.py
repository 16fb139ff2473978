"""Builds stub libraries of CANN, so that MindSpore's Ascend plugin loads without CANN and NPU.

Each function does nothing and returns 0. MindSpore's simulation compiles against them, but cannot compute.
MindSpore is not imported here.
"""

import ctypes
import hashlib
import mmap
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from mindbatch.io.children import run
from mindbatch.io.errors import BackendError
from mindbatch.io.installation import missing, pip_install
from mindbatch.io.regular_file import digested
from mindbatch.io.storage import Storage, TemporaryFolder, reason_of

SUPPORTED = ("2.9.0", "2.10.0")
"""Versions of MindSpore whose plugin loads with stub libraries."""
PLUGIN = Path("plugin/libmindspore_ascend.so.2")
"""The library that MindSpore loads first, in its lib/."""
_OPERATORS = Path("plugin/libmindspore_ops_ascend.so")
_RESOURCES = Path("plugin/ascend/libmindspore_ascend_res_manager.so")
_FOR_DATASETS = "libdvpp_utils.so"  # decodes images and videos; needs further libraries
_MACHINE = slice(18, 20)  # of an ELF header: the machine of the library's code


@dataclass(frozen=True)
class AscendPlugin:
    """The plugin of an installed MindSpore. folder: lib/ of MindSpore."""

    mindspore_version: str
    folder: Path

    @property
    def search_folders(self) -> tuple[Path, ...]:
        return self.folder, self.folder / "plugin", self.folder / "plugin/ascend"

    @property
    def key(self) -> str:
        """A unique name of this plugin: MindSpore's version and the plugin's digest."""
        with (self.folder / PLUGIN).open("rb") as file:
            return f"{self.mindspore_version}-{digested(hashlib.sha256(), file.read)[:16]}"

    @property
    def parts(self) -> list[Path]:
        """The libraries that may link to CANN, without those for the processors of an NPU."""
        machine = _machine(self.folder / PLUGIN)
        libraries = [self.folder / PLUGIN, self.folder / _OPERATORS, *self._below("plugin/ascend/**/*.so*")]
        return [path for path in libraries if path.name != _FOR_DATASETS and _machine(path) == machine]

    @property
    def others(self) -> list[Path]:
        """The other libraries of MindSpore, to which the parts link."""
        return [*self._below("*.so*")]

    @property
    def readers(self) -> list[Path]:
        """The parts that look up functions by name at run time."""
        libraries = [self.folder / path for path in (PLUGIN, _OPERATORS, _RESOURCES)]
        return [path for path in libraries if path.is_file()]

    def _below(self, pattern: str) -> Iterator[Path]:
        return (path for path in sorted(self.folder.glob(pattern)) if path.is_file())


def find_plugin() -> AscendPlugin:
    """Finds the plugin of the installed MindSpore.

    Raises:
        BackendError: it has none, or its version is not supported.
    """
    try:
        spec, mindspore_version = find_spec("mindspore"), version("mindspore")
    except (ImportError, PackageNotFoundError, ValueError):
        spec, mindspore_version = None, ""
    if spec is None or spec.origin is None:
        raise BackendError(f"the simulation of Ascend needs MindSpore; {missing('mindspore')}")
    return plugin_in(Path(spec.origin).parent, mindspore_version)


def plugin_in(package: Path, mindspore_version: str) -> AscendPlugin:
    """Finds the plugin in MindSpore's folder; raises as `find_plugin`."""
    if mindspore_version not in SUPPORTED:
        raise BackendError(
            f"MindSpore {mindspore_version}: the simulation of Ascend needs {' or '.join(SUPPORTED)}; "
            f"{pip_install()} mindspore=={SUPPORTED[-1]}"
        )
    plugin = AscendPlugin(mindspore_version, package / "lib")
    if not (plugin.folder / PLUGIN).is_file():
        raise BackendError(
            f"MindSpore {mindspore_version} has no plugin {PLUGIN.name} in {plugin.folder / PLUGIN.parent}, "
            "which the simulation of Ascend needs; the wheels for Linux have it"
        )
    return plugin


def _machine(library: Path) -> bytes:
    with library.open("rb") as file:
        return file.read(_MACHINE.stop)[_MACHINE]


_LOOKED_UP = re.compile(rb"\0(acl[A-Za-z0-9_]{3,60})(?=\0)")
_NOT_CANN = re.compile(r"_?Py|_ITM_|_ZTH")  # Python's, the compiler's, wrappers of thread-local variables
_SYSTEM = ("libm.so.6", "libdl.so.2", "libpthread.so.0", "libgcc_s.so.1", "libstdc++.so.6")
_TOOL_SECONDS = 120


def needed_functions(plugin: AscendPlugin) -> list[str]:
    """Lists the functions of CANN that the plugin links to, or looks up at run time.

    Raises:
        BackendError: nm does not exist or failed.
    """
    linked_names, available = undefined(plugin.parts), defined([*plugin.others, *plugin.parts])
    missing = {name for name in linked_names - available if not _NOT_CANN.match(name)}
    system = _system_libraries()
    linked = {name for name in missing if not any(hasattr(library, name) for library in system)}
    return sorted(linked | looked_up(plugin.readers))


def undefined(libraries: Sequence[Path]) -> set[str]:
    """Returns the undefined functions of the libraries, without weak ones.

    Names with a version (`name@GLIBC_2.2.5`) are the system's, because CANN's symbols have none.
    """
    return {fields[-1] for fields in _listing("--undefined-only", libraries) if _is_undefined(fields)}


def _is_undefined(fields: Sequence[str]) -> bool:
    return len(fields) == 2 and fields[0] == "U" and "@" not in fields[1]


def defined(libraries: Sequence[Path]) -> set[str]:
    return {fields[-1].partition("@")[0] for fields in _listing("--defined-only", libraries) if fields}


def looked_up(libraries: Iterable[Path]) -> set[str]:
    """Returns the names of functions that are strings in the libraries (for dlsym)."""
    names: set[str] = set()
    for path in libraries:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            names.update(name.decode() for name in _LOOKED_UP.findall(content))
    return names


def needed_tool(*names: str) -> str:
    """Returns the path of the first of these programs that exists. Raises BackendError if none does."""
    for name in names:
        if program := shutil.which(name):
            return program
    raise BackendError(
        f"{' or '.join(names)}: no such program on the PATH; the simulation of Ascend builds stub libraries "
        "with gcc and binutils (apt install gcc)"
    )


def run_tool(command: Sequence[str]) -> str:
    """Runs a program and returns its output. Raises BackendError with its first error line."""
    try:
        done = run(command, _TOOL_SECONDS)
    except TimeoutError:
        raise BackendError(f"{command[0]}: timed out after {_TOOL_SECONDS} s") from None
    except OSError as error:
        raise BackendError(f"{command[0]}: cannot be run ({reason_of(error)})") from error
    if done.code:
        reason = next(iter(done.errors.strip().splitlines()), "no error output")
        raise BackendError(f"{command[0]}: failed with code {done.code}: {reason}")
    return done.output


def _listing(kind: str, libraries: Sequence[Path]) -> Iterator[list[str]]:
    output = run_tool([needed_tool("nm"), "-D", kind, *map(str, libraries)])
    return (line.split() for line in output.splitlines() if not line.endswith(":"))


def _system_libraries() -> list[ctypes.CDLL]:
    """Loads the libraries of C and C++, some of whose names have no version with old compilers."""
    libraries = [ctypes.CDLL(None)]
    for name in _SYSTEM:
        with suppress(OSError):
            libraries.append(ctypes.CDLL(name))
    return libraries


FOLDER = "ascend_simulation"
LIBRARIES = Path("cann/lib")  # the plugin needs a folder of this name
PACKAGES = Path("python")
_REVISION = 2  # of the built files; part of the folder's name
_MAIN = "libascendcl.so"  # has all functions; the other libraries are links to it
_OTHERS = (
    *("acl_op_compiler", "acl_tdt_channel", "acl_tdt_queue", "ascend_hal", "c_sec", "cust_opapi"),
    *("error_manager", "exe_graph", "ge_common", "ge_runner", "graph", "graph_base", "hccl", "hccl_fwk"),
    *("msprofiler", "nnopbase", "opapi", "platform", "register", "runtime", "shmem"),
)
_OPTIONS = ("-shared", "-fPIC", "-w")
_DEVICE = "Ascend910B2"
_DEVICE_NAME = "aclrtGetSocName"  # its answer determines the available kernels
_FACTORY = "_ZN2ge13StatusFactory8InstanceEv"
"""ge::StatusFactory::Instance(), whose std::map<uint32_t, std::string> libraries of 2.10 fill when they are
loaded. The stub returns an empty map: a word before the tree's header, whose ends point to the header."""
_OPERATOR = "_ZN2ge15OperatorFactory14CreateOperatorEPKcS2_"
"""ge::OperatorFactory::CreateOperator, which writes an Operator to its caller's memory: a word and a shared
pointer, here null."""
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
    """Returns a folder with LIBRARIES and PACKAGES, which is built on first use and kept in `cache`.

    Concurrent processes each build one, and the first to finish is used.

    Raises:
        BackendError: there is no compiler, it failed, or the cache cannot be written.
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
    (folder.parent / "lib64").symlink_to(folder.name)  # some libraries are looked up there
    source = home / "functions.c"
    source.write_text(_source(name for name in needed_functions(plugin) if name not in _ANSWERS))
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
    """Renames the folder after syncing its files, so that it is complete even after a power loss."""
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
        if not home.is_dir():  # otherwise another process was first
            raise
    storage.sync_folder(home.parent)
