"""`mindbatch doctor`: what was found on this machine and in this installation."""

import importlib
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from mindbatch.config.environment import cache_folder, thread_settings
from mindbatch.config.machine import GIB, memory, usable_cores
from mindbatch.config.paths import data_root
from mindbatch.config.schema import TaskConfig, option
from mindbatch.io.errors import EXIT_DONE, EXIT_FAILED
from mindbatch.io.screen_text import printable, say, show, show_json
from mindbatch.tasks import machine

PACKAGES = ("mindbatch", "mindspore", "mindformers", "numpy", "transformers", "tokenizers", "hydra-core")
DEVICES = ("CPU", "Ascend")

Findings = dict[str, dict[str, Any]]
"""Section -> name -> what was found; None stands for nothing."""


@dataclass
class DoctorConfig(TaskConfig):
    """The keys of `mindbatch doctor`."""

    format: str = option("text", "text or json", choices=("text", "json"))
    verbose: bool = option(False, "show the messages of MindSpore, and tracebacks")


def run(config: DoctorConfig) -> int:
    """Prints the findings; fails where MindSpore, which belongs to an installation, cannot be imported."""
    mindspore, fault = _import_mindspore()
    findings = collect(mindspore, fault)
    if config.format == "json":
        show_json(findings)
    else:
        show(as_text(findings))
    if fault:
        say(f"mindspore cannot be imported: {fault}")
    return EXIT_FAILED if fault else EXIT_DONE


def collect(mindspore: ModuleType | None, fault: str | None) -> Findings:
    """Everything that the task shows; `fault` says why there is no `mindspore`."""
    return {
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "machine": {
            "platform": platform.platform(),
            "processor": machine.processor(),
            "flags": machine.processor_flags(),
            "cores": usable_cores(),
            **{f"memory_{name}_gib": round(size / GIB, 1) for name, size in memory().items()},
        },
        "devices": {name: _is_available(mindspore, name) for name in DEVICES} | {"fault": fault},
        "kernels": {"attention": _kernels(), "faster": _faster(), **machine.compilers()},
        "several_hosts": {"mpi4py": _version("mpi4py"), "mpirun": machine.version_line("mpirun")},
        "threads": thread_settings(),
        "folders": {"configs_and_examples": str(data_root()), "cache": str(cache_folder())},
    }


def as_text(findings: Findings) -> str:
    """The findings as a page: a heading for each section, a line for each thing found."""
    blocks = []
    for section, values in findings.items():
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
    """The module, or the reason why there is none. A broken installation may raise anything."""
    try:
        return importlib.import_module("mindspore"), None
    except Exception as error:
        return None, f"{type(error).__name__}: {' '.join(str(error).split())}"


def _is_available(mindspore: ModuleType | None, device: str) -> bool:
    if mindspore is None:
        return False
    try:
        return bool(mindspore.hal.is_available(device))
    except (AttributeError, RuntimeError, ValueError):  # a plugin that does not load
        return False


def _kernels() -> str:
    """Names the attention kernels in use; imports them, so that `not built` is known and not guessed."""
    try:
        from mindbatch.kernels.native_library import library_text

        return library_text()
    except (ImportError, OSError) as error:  # OSError: a library built for another machine
        return f"not available: {error}"


def _faster() -> str | None:
    """Suggests the rounding of weights worth trying here."""
    try:
        from mindbatch.kernels.native_library import faster

        return faster()
    except (ImportError, OSError):
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
