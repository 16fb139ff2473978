"""reshard.json, the marker of a finished reshard: its settings, files that changed since, adapters merged."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.json_object import read_json_object
from mindbatch.io.errors import CheckpointError, ConfigError

MARKER_NAME = "reshard.json"
"""Written last: a folder that has it is whole."""

JOURNAL_NAME = "reshard.journal"
"""In a folder while it is made."""

MERGED_KEY = "adapters"
"""In the settings: the digests of all adapters that were ever merged, each with its scaling."""

_MAX_MARKER_BYTES = 100_000_000


@dataclass(frozen=True)
class Marker:
    """Identity and settings of the reshard that made a folder; all its files, with sizes where known."""

    identity: str
    settings: Mapping[str, Any]
    files: Mapping[str, int | None]

    def changed(self, folder: Path) -> list[str]:
        """The files that are not in the folder any more, or not of their sizes."""
        return [name for name, size in self.files.items() if not _is_there(folder / name, size)]


def read_marker(folder: Path) -> Marker | None:
    """The folder's marker; None where there is none, or something else under its name."""
    try:
        content = read_json_object(folder / MARKER_NAME, _MAX_MARKER_BYTES)
    except (CheckpointError, OSError):
        return None
    match content:
        case {"identity": str(identity), "settings": dict(settings), "files": dict(files)}:
            sizes = {name: size if type(size) is int else None for name, size in files.items()}
            return Marker(identity, settings, sizes)
    return None


def noted_settings(source: Path) -> Mapping[str, Any]:
    """The settings of the reshard that made a source, a folder or a file in one; none if no reshard did."""
    marker = read_marker(source if source.is_dir() else source.parent)
    if marker is None or not (source.is_dir() or source.name in marker.files):
        return {}
    return marker.settings


def merged_before(source: Path) -> dict[str, float]:
    """The adapters that are in a checkpoint already, as far as a reshard has noted them."""
    noted = noted_settings(source).get(MERGED_KEY)
    if not isinstance(noted, dict):
        return {}
    return {digest: float(scaling) for digest, scaling in noted.items() if type(scaling) in (int, float)}


def refuse_merged_before(digests: Mapping[str, str], source: Path) -> None:
    """ConfigError where the checkpoint has adapters already, so that none is added twice.

    digests: `LoraPlan.digest` of each, by the key=value that gives it.
    """
    before = merged_before(source)
    faults = [
        f"{adapter}: {source} has this adapter merged already, with scaling {before[digest]:g} "
        f"({MARKER_NAME} says so); it would be added twice"
        for adapter, digest in digests.items()
        if digest in before
    ]
    if faults:
        raise ConfigError(faults)


def _is_there(path: Path, size: int | None) -> bool:
    try:
        return path.is_file() and size in (None, path.stat().st_size)
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return False
