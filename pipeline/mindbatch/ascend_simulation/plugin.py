"""MindSpore's Ascend plugin: where it is and which version. MindSpore is not imported."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from mindbatch.config.installed import missing
from mindbatch.io.errors import BackendError

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
            f"pip install mindspore=={SUPPORTED[-1]}"
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
