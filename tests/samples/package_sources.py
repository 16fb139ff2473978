"""The sources of the package as a build takes them."""

import shutil
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
SOURCES = ("configs", "examples", "pipeline")
FILES = (
    "setup.py",
    "pyproject.toml",
    "MANIFEST.in",
    "constraints.txt",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
)


def copy_of_the_sources(folder: Path) -> Path:
    """Fresh: what an earlier build left in the checkout must not help."""
    unwanted = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    for name in SOURCES:
        shutil.copytree(CHECKOUT / name, folder / name, ignore=unwanted)
    for name in FILES:
        shutil.copy2(CHECKOUT / name, folder / name)
    return folder


def without_optimizing(folder: Path) -> dict[str, str]:
    """A compiler that takes a fraction of the time: what is built has only to run."""
    compiler = folder / "compiler"
    compiler.write_text('#!/bin/sh\nexec g++ "$@" -O0\n')
    compiler.chmod(0o755)
    return {"CC": str(compiler), "CXX": str(compiler)}
