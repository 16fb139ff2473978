"""Libraries that stand in for CUDA's, so that MindSpore's GPU plugin loads where there is no CUDA.

Every function does nothing and returns 0. Nothing can be computed with them; only the compiler runs, which
asks for versions and for nothing else.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from mindbatch.backends.failure import BackendError
from mindbatch.backends.gpu_plugin import CUDA_VERSION, GpuPlugin, needed_tool, run_tool, wanted_symbols
from mindbatch.storage import Storage, reason_of

FOLDER = "cuda_stubs"
_REVISION = 1  # of what is built here; another one makes other folders
_VERSION_LINKS = {  # MindSpore reads the libraries' versions off these names
    f"libcudart.so.{CUDA_VERSION}.55": "libcudart.so.11.0",
    "libcudnn.so.8.5.0": "libcudnn.so.8",
}
_NVCC = f'#!/bin/sh\necho "Cuda compilation tools, release {CUDA_VERSION}, V{CUDA_VERSION}.55"\n'


def stub_libraries(plugin: GpuPlugin, cache: Path) -> Path:
    """A folder with bin/ and lib64/, as CUDA_HOME has them; built on first use, kept in `cache`.

    Of processes that build at once each builds its own, and the first to be done is taken.

    Raises:
        BackendError: no compiler, or it failed, or the cache cannot be written.
    """
    home = cache / FOLDER / f"{plugin.key}-{_REVISION}"
    if home.is_dir():
        return home
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=".building-", dir=home.parent))
    except OSError as error:
        raise BackendError(f"{home.parent}: cannot be written ({reason_of(error)})") from error
    try:
        _build(plugin, beside)
        _publish(beside, home, Storage())
    except OSError as error:
        raise BackendError(f"{home.parent}: cannot be written ({reason_of(error)})") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return home


def _build(plugin: GpuPlugin, home: Path) -> None:
    compiler = needed_tool("gcc", "cc")
    for name in ("bin", "lib64", "src"):
        (home / name).mkdir()
    for library, symbols in wanted_symbols(plugin).items():
        _compile(compiler, home, library, symbols)
    for link, target in _VERSION_LINKS.items():
        (home / "lib64" / link).symlink_to(target)
    (home / "bin/nvcc").write_text(_NVCC)
    (home / "bin/nvcc").chmod(0o755)
    home.chmod(0o755)


def _compile(compiler: str, home: Path, library: str, symbols: Mapping[str, set[str]]) -> None:
    source, script = home / "src" / f"{library}.c", home / "src" / f"{library}.map"
    source.write_text(_source(sorted(set().union(*symbols.values()))))
    options = ["-shared", "-fPIC", "-w", f"-Wl,-soname,{library}"]
    if tagged := {tag: names for tag, names in symbols.items() if tag}:
        script.write_text(_version_script(tagged))
        options.append(f"-Wl,--version-script={script}")
    run_tool([compiler, *options, "-o", str(home / "lib64" / library), str(source)])


def _source(names: Iterable[str]) -> str:
    functions = [f"long {name}(void) {{ return 0; }}" for name in names]
    return "\n".join(functions or ["int mindbatch_nothing_is_wanted_here;"]) + "\n"


def _version_script(tagged: Mapping[str, set[str]]) -> str:
    return "".join(
        f"{tag} {{ global: {' '.join(f'{n};' for n in sorted(tagged[tag]))} }};\n" for tag in tagged
    )


def _publish(built: Path, home: Path, storage: Storage) -> None:
    """Makes the folder appear whole, also after a power cut."""
    libraries = [path for path in built.rglob("*.so*") if not path.is_symlink()]
    for path in [*libraries, built / "bin/nvcc"]:
        handle = storage.reopen(path)
        try:
            storage.sync(handle)
        finally:
            storage.close(handle)
    for folder in (built / "bin", built / "lib64", built):
        storage.sync_folder(folder)
    try:
        os.rename(built, home)
    except OSError:
        if not home.is_dir():  # another process was first otherwise
            raise
    storage.sync_folder(home.parent)
