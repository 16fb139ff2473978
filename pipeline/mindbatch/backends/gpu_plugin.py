"""MindSpore's GPU plugin: where it is, and which of CUDA's symbols it wants. MindSpore is not imported."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from mindbatch.backends.failure import BackendError

NEEDED_FOR = "MindFormers' layout is worked out by MindSpore's compiler for GPUs"
# By prefix of a symbol: the library that has it, as the plugin asks for it.
LIBRARIES = {
    "cublas": "libcublas.so.11",
    "cuda": "libcudart.so.11.0",
    "cudnn": "libcudnn.so.8",
    "cufft": "libcufft.so.10",
    "curand": "libcurand.so.10",
    "cusolver": "libcusolver.so.11",
    "cusparse": "libcusparse.so.11",
    "nvrtc": "libnvrtc.so.11.2",
    "cu": "libcuda.so.1",
}
CUDA_VERSION = "11.6"
_SYMBOL = re.compile(rf"(?:__)?({'|'.join(LIBRARIES)})(?=[A-Z_])")  # a capital follows the prefix
_TOOL_SECONDS = 120

Symbols = dict[str, dict[str, set[str]]]
"""By library, then by version tag ("" for none): the names of functions."""


@dataclass(frozen=True)
class GpuPlugin:
    """The plugin of an installed MindSpore. folder: lib/ of MindSpore; path: the plugin itself."""

    mindspore_version: str
    folder: Path
    path: Path

    @property
    def search_folders(self) -> tuple[Path, ...]:
        """Where the plugin's other libraries are."""
        return self.path.parent / f"gpu{CUDA_VERSION}", self.folder

    @property
    def key(self) -> str:
        """Names this plugin and no other: MindSpore's version and the plugin's digest."""
        with self.path.open("rb") as file:
            digest = hashlib.sha256()
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        return f"{self.mindspore_version}-{digest.hexdigest()[:16]}"

    @property
    def parts(self) -> list[Path]:
        """All files of it that may want something of CUDA."""
        plugins = self.path.parent
        return [
            self.path,
            *sorted(plugins.glob(f"gpu{CUDA_VERSION}/*.so*")),
            *sorted(plugins.glob("gpu/*.so*")),
        ]


def find_plugin() -> GpuPlugin:
    """The plugin of the installed MindSpore. BackendError when it has none."""
    try:
        spec, found = find_spec("mindspore"), version("mindspore")
    except (ImportError, PackageNotFoundError, ValueError):
        spec, found = None, ""
    if spec is None or spec.origin is None:
        raise BackendError("MindSpore is not installed")
    return plugin_in(Path(spec.origin).parent, found)


def plugin_in(package: Path, mindspore_version: str) -> GpuPlugin:
    """The plugin in MindSpore's folder. BackendError when it has none."""
    folder = package / "lib"
    path = folder / "plugin" / f"libmindspore_gpu.so.{CUDA_VERSION}"
    if not path.is_file():
        raise BackendError(
            f"MindSpore {mindspore_version} has no plugin {path.name} in {path.parent}: {NEEDED_FOR}; "
            "the wheels for x86-64 Linux have it"
        )
    return GpuPlugin(mindspore_version, folder, path)


def needed_tool(*names: str) -> str:
    """The path of the first of these programs that is there. BackendError when none is."""
    for name in names:
        if found := shutil.which(name):
            return found
    raise BackendError(
        f"{' or '.join(names)}: no such program on the PATH; {NEEDED_FOR}, and libraries that stand in for "
        "CUDA's are made with gcc and binutils (apt install gcc)"
    )


def wanted_symbols(plugin: GpuPlugin) -> Symbols:
    """What the plugin leaves undefined of CUDA's libraries. BackendError when that cannot be read."""
    listing = run_tool([needed_tool("nm"), "-D", "--undefined-only", *map(str, plugin.parts)])
    return symbols_in(listing.splitlines())


def symbols_in(lines: Iterable[str]) -> Symbols:
    """CUDA's symbols in the lines of nm: `    U name` or `    U name@version`."""
    found: Symbols = {library: {} for library in LIBRARIES.values()}
    for line in lines:
        name, _, tag = line.rpartition(" ")[2].partition("@")
        if match := _SYMBOL.match(name):
            found[LIBRARIES[match[1]]].setdefault(tag.lstrip("@"), set()).add(name)
    return found


def run_tool(command: Sequence[str]) -> str:
    """What a program of the compiler writes. BackendError with its first line when it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TOOL_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"{command[0]}: {' '.join(str(error).split())}") from error
    if done.returncode:
        said = next(iter(done.stderr.strip().splitlines()), "nothing said")
        raise BackendError(f"{command[0]}: failed with code {done.returncode}: {said}")
    return done.stdout
