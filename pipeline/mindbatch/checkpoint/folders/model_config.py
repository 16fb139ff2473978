"""The configuration files of a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mindbatch.checkpoint.faults import collecting, raise_if_any
from mindbatch.checkpoint.folders.folder_files import file_in, has_file
from mindbatch.checkpoint.json_object import read_json_object

CONFIG_NAME = "config.json"
GENERATION_CONFIG_NAME = "generation_config.json"
_MAX_BYTES = 4 << 20


def read_config(folder: Path) -> dict[str, Any]:
    """What config.json says. CheckpointError when it is missing or not in order."""
    return _read(folder, CONFIG_NAME)


def read_configs(folder: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """config.json, and generation_config.json or None where that is absent.

    CheckpointError with what is wrong with both.
    """
    faults: list[str] = []
    config: dict[str, Any] = {}
    generation: dict[str, Any] | None = None
    with collecting(faults):
        config = read_config(folder)
    if has_file(folder, GENERATION_CONFIG_NAME):
        with collecting(faults):
            generation = _read(folder, GENERATION_CONFIG_NAME)
    raise_if_any(faults)
    return config, generation


def _read(folder: Path, name: str) -> dict[str, Any]:
    return read_json_object(file_in(folder, name), _MAX_BYTES)
