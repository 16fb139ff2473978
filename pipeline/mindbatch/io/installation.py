"""This installation: where it came from, and the commands that add to it, whichever it is.

An editable checkout, a light environment without MindSpore and a wheel are added to by the names of
what is missing. `mindbatch` itself is not installed anew for that: pip would fetch all that it lists, and
MindSpore with it.
"""

import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_PROJECT = "mindbatch"
_NAMES = {
    "mindspore": "MindSpore",
    "mindformers": "MindFormers",
    "ray": "Ray",
    "modelscope_hub": "ModelScope's client",
    "python_multipart": "python-multipart",
    "prometheus_client": "Prometheus's client",
    "lm_eval": "lm-evaluation-harness",
}
SERVER_PACKAGES = ("starlette", "uvicorn", "python_multipart", "prometheus_client")
_EXTRAS = {
    "ray": "ray",
    "mpi4py": "mpi",
    "modelscope_hub": "modelscope",
    "lm_eval": "lm-eval",
} | dict.fromkeys(SERVER_PACKAGES, "server")
_COMPILERS = ("g++", "c++", "clang++")


def missing(*packages: str) -> str:
    """Formats `PACKAGE is not installed here; ` and the command that installs it, or several of them."""
    names = " and ".join(_NAMES.get(package, package) for package in packages)
    verb = "is" if len(packages) == 1 else "are"
    return f"{names} {verb} not installed here; {install_command(*packages)}"


def install_command(*packages: str) -> str:
    """Returns the command that installs packages and all others of their extras, and leaves `mindbatch` as it
    is."""
    requirements = chain.from_iterable(map(_requirements, packages))
    return " ".join([pip_install(), *map(shlex.quote, requirements), *_pins()])


def kernels_are_missing(*, computes: bool) -> str:
    """Explains why there are no C++ kernels, the cost if NumPy computes, and the command that builds them."""
    cost = " NumPy computes, at about a fifth of the speed (19 beside 100 tokens/s);" if computes else ""
    return f"not built: no C++ compiler worked when mindbatch was installed;{cost} {rebuild_hint()}"


def pip_install() -> str:
    """Returns the command that installs into this environment, be it activated or not."""
    try:
        version("pip")  # looking the module up runs a hook of setuptools, which may warn
    except PackageNotFoundError:
        return f"uv pip install --python {shlex.quote(sys.executable)}"
    first = shutil.which("pip")
    is_first = first is not None and Path(first).parent == Path(sys.executable).parent
    return "pip install" if is_first else f"{shlex.quote(sys.executable)} -m pip install"


def rebuild_hint() -> str:
    """Formats the command that builds the C++ kernels again as the end of a sentence, with what it needs."""
    has_compiler = any(map(shutil.which, _COMPILERS))
    first = "" if has_compiler else "once there is a C++ compiler (apt install g++), "
    return f"{first}{_reinstall_command()} builds them"


def _reinstall_command() -> str:
    source, is_editable = _source()
    if source is None:
        return f"{pip_install()} --no-deps --force-reinstall path/to/checkout"
    options = "--no-deps -e" if is_editable else "--no-deps --force-reinstall"
    return f"{pip_install()} {options} {shlex.quote(str(source))}"


def _source() -> tuple[Path | None, bool]:
    """Returns the folder that this was installed from, if it exists, and whether it is editable (PEP 610)."""
    direct_url: Any = None
    with suppress(PackageNotFoundError, ValueError):
        direct_url = json.loads(distribution(_PROJECT).read_text("direct_url.json") or "null")
    if not isinstance(direct_url, dict) or not isinstance(direct_url.get("dir_info"), dict):
        return None, False
    folder = Path(unquote(urlsplit(str(direct_url.get("url"))).path))
    is_there = (folder / "pyproject.toml").is_file()
    return (folder if is_there else None), bool(direct_url["dir_info"].get("editable"))


def _pins() -> Iterator[str]:
    """Yields the option that keeps to the checkout's versions, of the MindSpore that is installed."""
    source, _ = _source()
    if source is None:
        return
    pins = source / "constraints.txt"
    with suppress(PackageNotFoundError):
        release = ".".join(version("mindspore").split(".")[:2])
        other = source / f"constraints-{release}.txt"
        pins = other if other.is_file() else pins
    if pins.is_file():
        yield f"-c {shlex.quote(str(pins))}"


def _requirements(package: str) -> list[str]:
    """Requirements of pyproject.toml: of the extra of a package, or its own; its name where there is none."""
    with suppress(PackageNotFoundError):
        lines = [line.partition(";")[::2] for line in requires(_PROJECT) or ()]
        extra = _EXTRAS.get(package)
        wanted = [
            requirement.strip()
            for requirement, marker in lines
            if (extra is not None and f"'{extra}'" in marker.replace('"', "'"))
            or (extra is None and not marker and requirement.startswith(package))
        ]
        if wanted:
            return wanted
    return [package]
