"""What a model's config.json says of it before the folder is opened."""

from __future__ import annotations

from pathlib import Path

from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, read_config
from mindbatch.errors import CheckpointError, ConfigError
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import IgnoredKeys
from mindbatch.models.registry import describe


def described_by_config(folder: Path, model_type: str, ignore: IgnoredKeys) -> Architecture | None:
    """None for a config.json that is damaged or of no model that is run: who opens the folder says so."""
    try:
        return describe(read_config(folder), model_type, str(folder / CONFIG_NAME), ignore=ignore)
    except (CheckpointError, ConfigError):
        return None


def positions_of(folder: Path, model_type: str, ignore: IgnoredKeys) -> int | None:
    """The most tokens of prompt and output together; None as for `described_by_config`."""
    arch = described_by_config(folder, model_type, ignore)
    return None if arch is None else arch.max_positions
