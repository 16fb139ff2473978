"""The optional packages of MindBatch, and why a test that needs one is skipped where it is not installed."""

from mindbatch.io.installation import _EXTRAS, is_installed, missing

BROUGHT = {"pandas": "ray", "tiktoken": "mindformers"}
"""Packages that come with an optional one, which brings them."""
OPTIONAL = frozenset(_EXTRAS) | BROUGHT.keys()


def reason_to_skip(*packages: str) -> str | None:
    """Names those that are not installed, and the line that brings them; None if all are there."""
    unknown = {*packages} - OPTIONAL
    assert not unknown, f"{unknown} are in no extra of setup.py"
    absent = [BROUGHT.get(package, package) for package in packages if not is_installed(package)]
    return missing(*absent) if absent else None
