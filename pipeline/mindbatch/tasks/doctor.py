"""`mindbatch doctor`: shows the hardware of this machine and the parts of this installation."""

import importlib
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from mindbatch.config.environment import cache_folder, thread_settings
from mindbatch.config.machine import (
    GIB,
    HYPER_PARALLEL,
    lacks_hyper_parallel,
    lines,
    memory,
    usable_cores,
    versions,
)
from mindbatch.config.paths import data_root
from mindbatch.config.schema import TaskConfig, option
from mindbatch.fields import kinds as kind
from mindbatch.io import children
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED
from mindbatch.io.installation import is_installed, missing
from mindbatch.io.screen_text import printable, say, show_json, show_page

PACKAGES = ("mindbatch", "mindspore", "mindformers", "numpy", "transformers", "tokenizers", "hydra-core")
USES = {
    "mindspore": "for NPUs, for compiling for them, and for MindFormers' models",
    "mindformers": "for model.provider=mindformers",
    "transformers": "for tokenizers of which tokenizer.json has a part only",
    "starlette": "for mindbatch serve",
    "ray": "for launch=ray and Ray Data",
    "mpi4py": "for model_parallel over several hosts on CPUs",
    "modelscope_hub": "for model.hub=modelscope",
    "lm_eval": "for python -m mindbatch.lm_eval",
    "s3fs": "for data and results in S3 (s3://)",
    "gcsfs": "for data and results in Google Cloud Storage (gs://)",
}

Diagnosis = dict[str, dict[str, Any]]
"""Findings by section and name; None is a missing thing."""

CPUINFO = Path("/proc/cpuinfo")
USED_FLAGS = (
    "avx2",
    "fma",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "bf16",
)
"""Processor flags that select kernels, or make them fast."""
COMPILERS = ("g++",)
_COMPILER_SECONDS = 10


@dataclass
class DoctorConfig(TaskConfig):
    """The keys of `mindbatch doctor`."""

    format: str = option("text", "text or json", kind.choice("text", "json"))
    verbose: bool = option(False, "show the messages of MindSpore, and tracebacks")


def run(config: DoctorConfig) -> int:
    """Prints the findings; fails if an installed MindSpore cannot be imported."""
    mindspore, error = _import_mindspore()
    findings = collect(mindspore, error)
    if config.format == "json":
        show_json(findings)
    else:
        show_page(as_text(findings))
    if error:
        say(f"mindspore cannot be imported: {error}")
    return EXIT_FAILED if error else EXIT_DONE


def collect(mindspore: ModuleType | None, error: str | None) -> Diagnosis:
    """Collects all findings. error: why `mindspore` is None."""
    return {
        "versions": {"python": platform.python_version()} | dict.fromkeys(PACKAGES) | versions(PACKAGES),
        "machine": {
            "platform": platform.platform(),
            "processor": processor(),
            "flags": processor_flags(),
            "cores": usable_cores(),
            **{f"memory_{name}_gib": round(size / GIB, 1) for name, size in memory().items()},
        },
        "missing": missing_packages(),
        "devices": {"CPU": True, "Ascend": _has_ascend(mindspore), "error": error},
        "kernels": _kernels() | compilers(),
        "several_hosts": {"mpi4py": versions(["mpi4py"]).get("mpi4py"), "mpirun": version_line("mpirun")},
        "threads": thread_settings(),
        "folders": {"configs_and_examples": str(data_root()), "cache": str(cache_folder())},
    }


def as_text(findings: Diagnosis) -> str:
    blocks = []
    for section, values in findings.items():
        if not values:
            continue
        width = max(map(len, values))
        lines = [f"  {name:<{width}}  {printable(_words(value))}" for name, value in values.items()]
        blocks.append("\n".join([section, *lines]))
    return "\n\n".join(blocks)


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(value) or "none"
    return "none" if value is None else str(value)


def _import_mindspore() -> tuple[ModuleType | None, str | None]:
    """Returns the module, or the error of its import, which may be of any type."""
    if not is_installed("mindspore"):
        return None, None
    try:
        return importlib.import_module("mindspore"), None
    except Exception as error:
        return None, f"{type(error).__name__}: {' '.join(str(error).split())}"


def missing_packages() -> dict[str, str]:
    """Describes, for each missing package, the uses that need it and how to install it."""
    packages = {name: f"{uses}: {missing(name)}" for name, uses in USES.items() if not is_installed(name)}
    if lacks_hyper_parallel():
        packages[HYPER_PARALLEL] = "MindFormers trains with it; for inference a stand-in is imported"
    return packages


def _has_ascend(mindspore: ModuleType | None) -> bool:
    if mindspore is None:
        return False
    try:
        return bool(mindspore.hal.is_available("Ascend"))
    except (AttributeError, RuntimeError, ValueError):  # a plugin that does not load
        return False


def _kernels() -> dict[str, str | None]:
    """Describes the kernels in use, and the number types of weights that are fast here.

    The kernels are loaded, because only that shows if they are built.
    """
    from mindbatch.kernels.native_library import faster, library_text

    return {"attention": library_text(), "faster": faster()}


def processor(cpuinfo: Path = CPUINFO) -> str:
    """Returns the processor's name, or its architecture if the system has no name."""
    return _cpu_field(cpuinfo, "model name") or platform.processor() or platform.machine()


def processor_flags(cpuinfo: Path = CPUINFO) -> list[str]:
    flags = (_cpu_field(cpuinfo, "flags") or _cpu_field(cpuinfo, "Features")).split()
    return [flag for flag in USED_FLAGS if flag in flags]


def compilers() -> dict[str, str | None]:
    """Returns the first line of each C++ compiler's version; None if it is not installed."""
    return {name: version_line(name) for name in COMPILERS}


def version_line(name: str) -> str | None:
    """Returns the first line of a program's version; None if it is not installed."""
    path = shutil.which(name)
    if path is None:
        return None
    try:
        output = children.run([path, "--version"], _COMPILER_SECONDS).output
    except OSError:  # TimeoutError is one
        return f"{path} does not run"
    return (output.splitlines() or [path])[0]


def _cpu_field(cpuinfo: Path, field: str) -> str:
    for line in lines(cpuinfo):
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""
