"""Packages that settings need and an installation may lack: MindSpore and MindFormers, Ray, mpi4py."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec

from mindbatch.config.model_schema import ModelConfig, RuntimeConfig

HYPER_PARALLEL = "hyper_parallel"
"""MindFormers 2.0 imports it for training; PyPI does not have it."""

_NAMES = {
    "mindspore": "MindSpore",
    "mindformers": "MindFormers",
    "ray": "Ray",
    "modelscope_hub": "ModelScope's client",
    "python_multipart": "python-multipart",
    "prometheus_client": "Prometheus's client",
}
SERVER_PACKAGES = ("starlette", "uvicorn", "python_multipart", "prometheus_client")
_EXTRAS = {"ray": "[ray]", "mpi4py": "[mpi]", "modelscope_hub": "[modelscope]"} | dict.fromkeys(
    SERVER_PACKAGES, "[server]"
)


def is_installed(package: str) -> bool:
    """True if a package can be found; it is not imported."""
    return find_spec(package) is not None


def missing(package: str) -> str:
    """`PACKAGE is not installed here; ` and the command that brings it."""
    command = f"pip install -e '.{_EXTRAS[package]}'" if package in _EXTRAS else "pip install -e ."
    name = _NAMES.get(package, package)
    return f"{name} is not installed here; {command} -c constraints.txt in the checkout"


def lacks_hyper_parallel() -> bool:
    """True if the installed MindFormers asks for hyper_parallel, and it is not there."""
    try:
        asked = requires("mindformers") or []
    except PackageNotFoundError:
        return False
    return any(line.startswith("hyper-parallel") for line in asked) and not is_installed(HYPER_PARALLEL)


def package_faults(model: ModelConfig, runtime: RuntimeConfig) -> Iterator[str]:
    """Yields errors of settings that MindSpore or MindFormers compute, where these are not installed.

    Native models on a CPU need neither (constraints-cpu.txt).
    """
    if model.provider == "mindformers":
        for package in ("mindspore", "mindformers"):
            if not is_installed(package):
                yield f"model.provider=mindformers: {missing(package)}, or use model.provider=native"
    elif runtime.device_target == "Ascend" and not is_installed("mindspore"):
        yield f"runtime.device_target=Ascend: {missing('mindspore')}, or use runtime.device_target=CPU"
