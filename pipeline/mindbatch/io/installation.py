"""This installation: where it came from, and the commands that add to it.

Whatever is missing is brought by an extra of setup.py. pip takes the `mindbatch` that is installed for it,
from wherever it came, so that the same command works for a checkout, a wheel and an index.
"""

import json
import shlex
import shutil
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
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
    "mindspore": "mindspore",
    "mindformers": "mindformers",
    "transformers": "transformers",
    "ray": "ray",
    "mpi4py": "mpi",
    "modelscope_hub": "modelscope",
    "lm_eval": "lm-eval",
    "fsspec": "remote",
    "s3fs": "remote",
    "gcsfs": "remote",
} | dict.fromkeys(SERVER_PACKAGES, "server")
"""By package: the extra that brings it."""
_COMPILERS = ("g++", "c++")


def is_installed(package: str) -> bool:
    """True if a package is installed. It is not imported."""
    return find_spec(package) is not None


def missing(*packages: str) -> str:
    """Formats `PACKAGE is not installed here; ` and the command that installs it, or several of them."""
    names = " and ".join(_NAMES.get(package, package) for package in packages)
    verb = "is" if len(packages) == 1 else "are"
    return f"{names} {verb} not installed here; {install_command(*packages)}"


def install_command(*packages: str) -> str:
    """Returns the command that installs the extras of packages, and leaves `mindbatch` as it is."""
    extras = ",".join(dict.fromkeys(_EXTRAS[package] for package in packages))
    return " ".join([pip_install(), shlex.quote(f"{_PROJECT}[{extras}]"), *_pins()])


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


def _pins() -> list[str]:
    """Returns the option that keeps an environment that scripts/venv.sh made to the checkout's versions."""
    environment = Path(sys.prefix)
    pins = environment.parent / f"constraints{environment.name.removeprefix('.venv')}.txt"
    is_made = pins.is_file() and any(environment.glob("installed-for-*"))
    return [f"-c {shlex.quote(str(pins))}"] if is_made else []
