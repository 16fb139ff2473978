"""Packaging: requirements, the package under pipeline/, the shipped configs and examples, the C++ kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

# Native models on a CPU: ranges, so that the package installs beside what an environment already has.
CORE = [
    "numpy>=1.26",
    "pyyaml>=6.0",
    "hydra-core>=1.3.8",
    "omegaconf>=2.3",
    "tokenizers>=0.22",
    "jinja2>=3.1",
    "markupsafe>=2.1",
    "rich>=14.3",  # older ones write an empty line where nothing is drawn
    "orjson>=3.9",
    "xxhash>=3.4.1",
    "pyarrow>=19",
    "sacrebleu>=2.4",
    "jieba>=0.42",
    "sentencepiece>=0.2",
    "protobuf>=4.21.1",
    "llguidance>=1.9,<2",
    "regex>=2024.5.10",
    "huggingface-hub>=0.34",
    "requests>=2.32.3",
]
MINDSPORE = ["mindspore>=2.9,<2.11"]
RAY = ["ray[data]>=2.50,<3"]
MPI = ["mpi4py>=4,<5"]
MODELSCOPE = ["modelscope-hub>=0.5,<0.6"]
REMOTE = ["fsspec>=2024.2", "s3fs>=2024.2", "gcsfs>=2024.2"]
SERVER = ["starlette>=1,<2", "uvicorn>=0.40,<1", "python-multipart>=0.0.20", "prometheus-client>=0.20"]
EXTRAS = {
    "mindspore": MINDSPORE,
    # MindFormers pins transformers and pyarrow itself.
    "mindformers": [*MINDSPORE, "mindformers>=1.9,<2.1"],
    "transformers": ["transformers>=4.57,<6"],
    "server": SERVER,
    "ray": RAY,
    "mpi": MPI,
    "modelscope": MODELSCOPE,
    "remote": REMOTE,
    "lm-eval": ["lm-eval>=0.4.12,<0.5"],
    "test": [
        *(*SERVER, *RAY, *MPI, *MODELSCOPE, *REMOTE),
        "pytest>=8",
        "pytest-xdist>=3.6",
        "hypothesis>=6",
        "jsonschema>=4",
        "safetensors>=0.4",
        "scipy>=1.11",
        "openai>=3,<4",
        "ruff>=0.8",
        "mypy>=1.11",
        "types-PyYAML",
        "build>=1",
        "auditwheel>=6",
        "nbclient>=0.10",
        "ipykernel>=7",
        "uv>=0.9",
        "duckdb>=1.1",
    ],
    "parity": ["torch==2.13.0"],
    "docs": ["mkdocs>=1.6,<2", "mkdocs-material>=9.7,<9.8"],
}

SOURCES = Path("pipeline/mindbatch/kernels/csrc")
COMMON_FLAGS = [
    "-std=c++17",
    "-O3",
    "-g0",
    "-fPIC",
    "-ffp-contract=off",  # multiply-adds are where the sources say so
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-pthread",
]
AVX512 = ["-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw", "-mfma", "-mprefer-vector-width=512"]
# Each variant is the same source for another instruction set; the library picks one when it is loaded.
VARIANT_FLAGS = {"variant_avx512": AVX512, "variant_avx2": ["-mavx2", "-mfma"]}
# Products that newer instruction sets do faster; left out where the compiler does not know the set.
X86_EXTENSIONS = {
    "variant_avx512_vnni": [*AVX512, "-mavx512vnni"],
    "variant_avx512_bf16": [*AVX512, "-mavx512bf16"],
    "variant_amx": [*AVX512, "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"],
}
# Else GCC copies sums between registers in the inner loops: 61 instructions for 32.
NEON = ["-fno-tree-pre", "-fno-schedule-insns"]
ARM_EXTENSIONS = {
    "variant_neon_dotprod": [*NEON, "-march=armv8.2-a+dotprod"],
    "variant_neon_i8mm_bf16": [*NEON, "-march=armv8.2-a+dotprod+i8mm+bf16"],
}
EXTENSIONS = {"x86_64": X86_EXTENSIONS, "aarch64": ARM_EXTENSIONS}
"""By machine, as `g++ -dumpmachine` begins with it."""


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

    def get_ext_filename(self, fullname: str) -> str:
        """One library for every Python: it is loaded by ctypes and MindSpore."""
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """The library has no Python init function."""
        return []

    def _build(self, ext: Extension, target: Path) -> None:
        self._take_gcc()
        machine = self._says("-dumpmachine").partition("-")[0]
        known = {name: flags for name, flags in EXTENSIONS.get(machine, {}).items() if self._knows(flags)}
        special = {**(VARIANT_FLAGS if machine == "x86_64" else {"variant_portable": NEON}), **known}
        common = [*COMMON_FLAGS, *self._for_older_systems(), *map(extension_macro, known)]
        left_out = {*VARIANT_FLAGS, *chain.from_iterable(EXTENSIONS.values())} - special.keys()

        def compiled(source: str) -> list[str]:
            flags = common + special.get(Path(source).stem, [])
            return self.compiler.compile(
                [source], output_dir=self.build_temp, extra_postargs=flags, depends=ext.depends
            )

        with ThreadPoolExecutor(os.cpu_count()) as threads:
            objects = threads.map(compiled, [path for path in ext.sources if Path(path).stem not in left_out])
        target.parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(
            [*chain.from_iterable(objects)], str(target), extra_postargs=["-pthread"], target_lang="c++"
        )

    def _take_gcc(self) -> None:
        """Takes a GCC, whose dialect the sources are in, where the user names no compiler and Python's own is
        another, or is not there."""
        if os.environ.get("CXX"):
            return
        candidates = (self.compiler.compiler_so_cxx[0], "g++", "c++")
        gcc = next((name for name in candidates if shutil.which(name) and is_gcc(name)), None)
        if gcc:
            names = ("compiler_cxx", "compiler_so_cxx", "linker_so_cxx")
            self.compiler.set_executables(
                **{name: [gcc, *getattr(self.compiler, name)[1:]] for name in names}
            )

    def _for_older_systems(self) -> list[str]:
        """Flags of a wheel for manylinux: only functions that its older C and C++ libraries have."""
        wheel = self.distribution.get_command_obj("bdist_wheel", create=False)
        is_wanted = wheel and "manylinux" in (wheel.plat_name or "")
        return ["-include", str(SOURCES / "manylinux.h")] if is_wanted else []

    def _knows(self, flags: list[str]) -> bool:
        """Whether the compiler builds for an instruction set."""
        Path(self.build_temp).mkdir(parents=True, exist_ok=True)
        empty = Path(self.build_temp) / "empty.cpp"
        empty.write_text("#ifdef __x86_64__\n#include <immintrin.h>\n#else\n#include <arm_neon.h>\n#endif\n")
        command = [*self.compiler.compiler_so_cxx, *flags, "-fsyntax-only", str(empty)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def _says(self, option: str) -> str:
        return output_of([self.compiler.compiler_so_cxx[0], option])


class Wheel(bdist_wheel):
    """A wheel for every Python 3; with the kernels for one platform, without them for all."""

    def get_tag(self) -> tuple[str, str, str]:
        self.root_is_pure = not list(Path(self.bdist_dir).glob("mindbatch/kernels/*.so"))
        return "py3", "none", "any" if self.root_is_pure else super().get_tag()[2]


def is_gcc(compiler: str) -> bool:
    """Whether a compiler is GCC, and no Clang under another name."""
    macros = output_of([compiler, "-dM", "-E", "-x", "c++", os.devnull])
    return "__GNUC__" in macros and "__clang__" not in macros


def output_of(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def without_kernels(error: Exception) -> str:
    """The line for whoever installs; mindbatch itself says more (`installation.kernels_are_missing`)."""
    reason = error if isinstance(error, OSError) else "the compiler failed, as it says above"
    return (
        f"mindbatch: the C++ kernels were not built ({reason}); NumPy will compute, at about a fifth of the "
        "speed. With a C++ compiler (apt install g++) the same installation brings them, once more with "
        "--no-cache-dir --force-reinstall --no-deps"
    )


def extension_macro(name: str) -> str:
    """What tells csrc/instruction_sets.cpp that a source of EXTENSIONS is built."""
    return f"-DMB_WITH_{name.removeprefix('variant_').upper()}"


KERNELS = Extension(
    "mindbatch.kernels._cpu",
    sources=[str(path) for path in sorted(SOURCES.glob("*.cpp"))],
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
        "mindbatch.examples": ["*.ipynb", "*/*", "adapters/*/*"],
        "mindbatch.evaluation": ["templates/*"],
        "mindbatch.kernels": ["csrc/*"],
        "mindbatch.config_json": ["config_keys.json", "foreign_models.json"],
        "mindbatch.server": ["page.html"],
    },
    # A checkout has the training of the shipped model, and no distribution does.
    exclude_package_data={"mindbatch.examples": ["training/*"]},
    ext_modules=[KERNELS],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": Wheel},
    install_requires=CORE,
    extras_require=EXTRAS,
)
