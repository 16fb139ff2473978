"""Stub libraries for CANN's, so that MindSpore's Ascend plugin loads where there is neither CANN nor NPU.

Every function does nothing and returns 0. MindSpore's own simulation compiles against them; nothing can be
computed. MindSpore is not imported.
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
from mindbatch.io.storage import Storage, TemporaryFolder, reason_of

SUPPORTED = ("2.9.0", "2.10.0")
"""MindSpore's versions whose plugin is known to load against stub libraries."""
PLUGIN = Path("plugin/libmindspore_ascend.so.2")
"""Library that MindSpore loads first, below its lib/."""
_OPERATORS = Path("plugin/libmindspore_ops_ascend.so")
_RESOURCES = Path("plugin/ascend/libmindspore_ascend_res_manager.so")
_FOR_DATASETS = "libdvpp_utils.so"  # decoding of images and videos: needs libraries of its own
_MACHINE = slice(18, 20)  # of an ELF header: what the library's code runs on


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
        """Names this plugin and no other: MindSpore's version and the plugin's digest."""
        digest = hashlib.sha256()
        with (self.folder / PLUGIN).open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        return f"{self.mindspore_version}-{digest.hexdigest()[:16]}"

    @property
    def parts(self) -> list[Path]:
        """Lists the libraries that may want something of CANN, but for those of an NPU's own processors."""
        machine = _machine(self.folder / PLUGIN)
        libraries = [self.folder / PLUGIN, self.folder / _OPERATORS, *self._below("plugin/ascend/**/*.so*")]
        return [path for path in libraries if path.name != _FOR_DATASETS and _machine(path) == machine]

    @property
    def others(self) -> list[Path]:
        """MindSpore's other libraries, which have what the parts want of MindSpore."""
        return [*self._below("*.so*")]

    @property
    def readers(self) -> list[Path]:
        """The parts that look functions up by name while they run."""
        libraries = [self.folder / path for path in (PLUGIN, _OPERATORS, _RESOURCES)]
        return [path for path in libraries if path.is_file()]

    def _below(self, pattern: str) -> Iterator[Path]:
        return (path for path in sorted(self.folder.glob(pattern)) if path.is_file())


def find_plugin() -> AscendPlugin:
    """The plugin of the installed MindSpore.

    Raises:
        BackendError: it has none, or its version is another than those supported.
    """
    try:
        spec, mindspore_version = find_spec("mindspore"), version("mindspore")
    except (ImportError, PackageNotFoundError, ValueError):
        spec, mindspore_version = None, ""
    if spec is None or spec.origin is None:
        raise BackendError(f"the simulation of Ascend is a part of MindSpore; {missing('mindspore')}")
    return plugin_in(Path(spec.origin).parent, mindspore_version)


def plugin_in(package: Path, mindspore_version: str) -> AscendPlugin:
    """The plugin in MindSpore's folder; errors as of `find_plugin`."""
    if mindspore_version not in SUPPORTED:
        raise BackendError(
            f"MindSpore {mindspore_version}: Ascend is simulated with {' or '.join(SUPPORTED)} only; "
            f"{pip_install()} mindspore=={SUPPORTED[-1]}"
        )
    plugin = AscendPlugin(mindspore_version, package / "lib")
    if not (plugin.folder / PLUGIN).is_file():
        raise BackendError(
            f"MindSpore {mindspore_version} has no plugin {PLUGIN.name} in {plugin.folder / PLUGIN.parent}: "
            "Ascend is simulated by it; the wheels for Linux have it"
        )
    return plugin


def _machine(library: Path) -> bytes:
    with library.open("rb") as file:
        return file.read(_MACHINE.stop)[_MACHINE]


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
