"""Adapters that a checkpoint records as merged, so that none is added twice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mindbatch.checkpoint.folders.reshard_marker import MARKER_NAME, noted_settings
from mindbatch.io.errors import ConfigError

MERGED_KEY = "adapters"
"""In a marker's settings: the digests of all adapters that were ever merged, each with its scaling."""


def merged_before(path: Path) -> dict[str, float]:
    """The adapters that are in a checkpoint already, as far as a reshard has noted them."""
    noted = noted_settings(path).get(MERGED_KEY)
    if not isinstance(noted, dict):
        return {}
    return {str(digest): float(scaling) for digest, scaling in noted.items() if _is_number(scaling)}


def refuse_merged_before(digests: Mapping[str, str], path: Path) -> None:
    """ConfigError where the checkpoint has adapters already.

    digests: `LoraPlan.digest` of each, by the key=value that gives it.
    """
    before = merged_before(path)
    faults = [
        f"{adapter}: {path} has this adapter merged already, with scaling {before[digest]:g} "
        f"({MARKER_NAME} says so); it would be added twice"
        for adapter, digest in digests.items()
        if digest in before
    ]
    if faults:
        raise ConfigError(faults)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
