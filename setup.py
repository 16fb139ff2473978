"""Packaging: the package under pipeline/, the shipped configs and examples, and the C++ CPU kernels."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

SOURCES = Path("pipeline/mindbatch/kernels/csrc")
COMMON_FLAGS = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-pthread",
]
AVX512 = ["-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw", "-mfma", "-mprefer-vector-width=512"]
# Each variant is the same source for another instruction set; the library picks one when it is loaded.
VARIANT_FLAGS = {"variant_avx512": AVX512, "variant_avx2": ["-mavx2", "-mfma"]}
# Products that newer instruction sets do faster; left out where the compiler does not know the set.
EXTENSION_FLAGS = {
    "variant_avx512_vnni": [*AVX512, "-mavx512vnni"],
    "variant_avx512_bf16": [*AVX512, "-mavx512bf16"],
    "variant_amx": [*AVX512, "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"],
}


class BuildKernels(build_ext):
    """Compiles each source with its own flags; without a compiler the package installs without kernels."""

    def build_extension(self, ext: Extension) -> None:
        """Never fails: whatever is wrong with a compiler, NumPy computes in place of the kernels."""
        target = Path(self.get_ext_fullpath(ext.name))
        try:
            self._build(ext, target)
            if not target.is_file():
                raise CCompilerError(f"{target}: was not made")
        except (BaseError, CCompilerError, OSError) as error:
            target.unlink(missing_ok=True)
            print(without_kernels(error), file=sys.stderr)

    def _build(self, ext: Extension, target: Path) -> None:
        self._take_another_compiler()
        known = [name for name, flags in EXTENSION_FLAGS.items() if self._knows(flags)]
        common = COMMON_FLAGS + [extension_macro(name) for name in known]
        objects = []
        for source in ext.sources:
            name = Path(source).stem
            if name in EXTENSION_FLAGS and name not in known:
                continue
            flags = common + VARIANT_FLAGS.get(name, []) + EXTENSION_FLAGS.get(name, [])
            objects += self.compiler.compile(
                [source], output_dir=self.build_temp, extra_postargs=flags, depends=ext.depends
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(objects, str(target), extra_postargs=["-pthread"], target_lang="c++")

    def _take_another_compiler(self) -> None:
        """Where Python's own C++ compiler is not there and the user names none, takes one that is."""
        other = next(filter(shutil.which, ("g++", "c++", "clang++")), None)
        if other and not os.environ.get("CXX") and not shutil.which(self.compiler.compiler_so_cxx[0]):
            names = ("compiler_cxx", "compiler_so_cxx", "linker_so_cxx")
            self.compiler.set_executables(
                **{name: [other, *getattr(self.compiler, name)[1:]] for name in names}
            )

    def _knows(self, flags: list[str]) -> bool:
        """Whether the compiler builds for an instruction set; never for that of another architecture."""
        if platform.machine() != "x86_64":
            return False
        Path(self.build_temp).mkdir(parents=True, exist_ok=True)
        empty = Path(self.build_temp) / "empty.cpp"
        empty.write_text("#include <immintrin.h>\n")
        command = [*self.compiler.compiler_so_cxx, *flags, "-fsyntax-only", str(empty)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """The library is loaded by MindSpore and ctypes; it has no Python init function."""
        return []


def without_kernels(error: Exception) -> str:
    """The line for whoever installs; mindbatch itself says more (`installation.kernels_are_missing`)."""
    reason = error if isinstance(error, OSError) else "the compiler failed, as it says above"
    return (
        f"mindbatch: the C++ kernels were not built ({reason}); NumPy will compute, at about a fifth of the "
        "speed. With a C++ compiler (apt install g++) the same installation brings them, once more with "
        "--no-cache-dir --force-reinstall --no-deps"
    )


def extension_macro(name: str) -> str:
    """What tells csrc/instruction_sets.cpp that a source of EXTENSION_FLAGS is built."""
    return f"-DMB_WITH_{name.removeprefix('variant_').upper()}"


def kernel_sources() -> list[str]:
    """The sources for this machine: the x86 variants only on x86."""
    names = sorted(path.name for path in SOURCES.glob("*.cpp"))
    if platform.machine() != "x86_64":
        names = [name for name in names if not Path(name).stem.startswith("variant_") or "portable" in name]
    return [str(SOURCES / name) for name in names]


KERNELS = Extension(
    "mindbatch.kernels._cpu",
    sources=kernel_sources(),
    depends=[str(path) for path in sorted(SOURCES.glob("*.h"))],
    optional=True,
)

setup(
    # configs/ and examples/ stand at the top of the checkout and travel inside the package.
    package_dir={"": "pipeline", "mindbatch.configs": "configs", "mindbatch.examples": "examples"},
    packages=[*find_packages("pipeline"), "mindbatch.configs", "mindbatch.examples"],
    package_data={
        "mindbatch": ["py.typed"],
        "mindbatch.configs": ["*.yaml", "*/*.yaml"],
        "mindbatch.examples": ["*.jsonl", "*/*", "adapters/*/*"],
        "mindbatch.evaluation": ["templates/*"],
        "mindbatch.kernels": ["csrc/*"],
        "mindbatch.config_json": ["config_keys.json", "foreign_models.json"],
        "mindbatch.server": ["page.html"],
    },
    # A checkout has the training of the shipped model, and no distribution does.
    exclude_package_data={"mindbatch.examples": ["training/*"]},
    ext_modules=[KERNELS],
    cmdclass={"build_ext": BuildKernels},
)
