"""The versions that all processes of a job must have in common."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def versions() -> dict[str, str]:
    """By package; those that are not installed are left out."""
    installed = {}
    for package in ("mindbatch", "mindspore"):
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed
